package cuda

// HasKernel reports whether the kernel of small copies is loaded.
func (g *GPU) HasKernel() bool {
	g.copies.mu.Lock()
	defer g.copies.mu.Unlock()
	return g.copies.kernel.function != 0
}
