package files

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/verbs"
)

// answerList returns the response to a list request.
func (v *process) answerList(ctx context.Context, m *fileList) []byte {
	var entries []fileEntry
	var err error
	if m.name == "" {
		entries = v.exported(ctx, m.after)
	} else {
		entries, err = v.listDir(ctx, m.name, m.after)
	}
	if err != nil {
		return refuse(m.id, err)
	}
	answer := fileEntries{id: m.id, more: len(entries) > maxEntries}
	size := 0
	for i := range entries[:min(len(entries), maxEntries)] {
		if size += len(entries[i].append(nil)); size > maxPage {
			answer.more = true
			break
		}
		answer.entries = entries[:i+1]
	}
	return answer.encode()
}

// listDir returns one entry more than fits a response.
func (v *process) listDir(ctx context.Context, name, after string) ([]fileEntry, error) {
	x, inside, err := v.resolve(ctx, name, Read)
	if err == nil && x.upload != nil {
		err = ErrNotFound // see listTree
	}
	if err != nil {
		return nil, err
	}
	info, err := x.root.Stat(inside)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if after != "" {
			return nil, nil
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%w: %s", chunk.ErrKind, info.Mode().Type())
		}
		e, err := chunk.Describe(x.root, inside, info)
		e.Name = name
		return []fileEntry{{Entry: e, access: Read}}, err
	}
	listing, err := v.listing(ctx, x, inside, after != "")
	if err != nil {
		return nil, err
	}
	list, err := listing.After(after, maxEntries+1)
	if len(list) <= maxEntries {
		v.dropListing(listing)
	}
	entries := make([]fileEntry, len(list))
	for i, e := range list {
		entries[i].Entry = e
	}
	return entries, err
}

// listing returns the contents of a directory. A continued listing returns the original contents.
// One directory is read at a time.
func (v *process) listing(ctx context.Context, x *Export, dir string, continued bool) (*chunk.Listing, error) {
	f := v.peer.engine
	is := func(l listing) bool { return l.export == x && l.dir == dir }
	f.mu.Lock()
	if v.Over() {
		f.mu.Unlock()
		return nil, ErrPeerGone
	}
	o := &v.state
	if i := slices.IndexFunc(o.listings, is); i >= 0 && continued {
		defer f.mu.Unlock()
		return o.listings[i].Listing, nil
	}
	f.mu.Unlock()
	if err := o.listing.Take(ctx); err != nil {
		return nil, err
	}
	defer func() { <-o.listing }()
	l, err := chunk.List(x.root, dir, maxNames)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	o.listings = append(slices.DeleteFunc(o.listings, is), listing{x, dir, l})
	names := 0
	for i := len(o.listings) - 1; i >= 0; i-- {
		if names += o.listings[i].Len(); names > maxNames {
			o.listings = slices.Delete(o.listings, 0, i+1)
			break
		}
	}
	return l, nil
}

// dropListing forgets a completely listed directory.
func (v *process) dropListing(l *chunk.Listing) {
	f := v.peer.engine
	f.mu.Lock()
	defer f.mu.Unlock()
	o := &v.state
	o.listings = slices.DeleteFunc(o.listings, func(open listing) bool { return open.Listing == l })
}

// exported returns the Exports that the peer may use.
func (v *process) exported(ctx context.Context, after string) (entries []fileEntry) {
	f := v.peer.engine
	f.mu.Lock()
	all := make([]*Export, 0, len(f.exports))
	for _, x := range f.exports {
		if x.upload == nil && x.cfg.Name > after {
			all = append(all, x)
		}
	}
	f.mu.Unlock()
	slices.SortFunc(all, func(a, b *Export) int { return cmp.Compare(a.cfg.Name, b.cfg.Name) })
	for _, x := range all {
		access := v.accessFor(ctx, x, Read) & (Read | Write)
		info, err := x.root.Stat(cmp.Or(x.file, "."))
		if access == 0 || err != nil || !info.IsDir() && !info.Mode().IsRegular() {
			continue
		}
		entry := fileEntry{access: access}
		if entry.Entry, err = chunk.Describe(x.root, ".", info); err != nil {
			continue
		}
		entry.Name = x.cfg.Name
		entries = append(entries, entry)
	}
	return entries
}

// Info describes a remote file, directory or symbolic link.
type Info struct {
	// Name is the full name, as passed to Get.
	Name string
	// Mode holds the type (file, directory or symbolic link) and the permissions.
	Mode fs.FileMode
	// Size is the size of a file in bytes.
	Size int64
	// ModTime is the modification time.
	ModTime time.Time
	// Link is the target of a symbolic link.
	Link string
	// Access is the access granted to this side, for Exports and for a single listed file. It is 0 for directory entries.
	Access Access
}

// List returns the entries of a remote directory, or the file itself if name is a file. An empty name lists all Exports that this side may
// use. The result is sorted by name, without special files. List returns ErrNotFound for an unknown or denied name, ErrTooLong if name, or
// the names in the directory together, are too long, and ErrFailed for a directory of more than 1<<20 entries.
func (p *Peer) List(ctx context.Context, name string) ([]Info, error) {
	switch {
	case p.engine == nil:
		return nil, newError("list", p, name, ErrClosed)
	case ctx == nil:
		return nil, newError("list", p, name, verbs.Invalidf("the Context is nil"))
	}
	entries, err := p.entries(ctx, name, &treeQuota{})
	if err != nil {
		return nil, newError("list", p, name, err)
	}
	list := make([]Info, 0, len(entries))
	for _, e := range entries {
		if chunk.Special(e.Mode) {
			continue
		}
		i := Info{Name: path.Join(name, e.Name), Mode: e.Mode, Size: e.Size, ModTime: e.ModTime, Link: e.Link, Access: e.access}
		if e.access != 0 {
			i.Name = e.Name
		}
		list = append(list, i)
	}
	return list, nil
}

// Stat describes a remote file or directory by its full name. It returns ErrNotFound for an unknown or denied name. A symbolic link is
// followed within its Export.
func (p *Peer) Stat(ctx context.Context, name string) (Info, error) {
	switch {
	case p.engine == nil:
		return Info{}, newError("stat", p, name, ErrClosed)
	case ctx == nil:
		return Info{}, newError("stat", p, name, verbs.Invalidf("the Context is nil"))
	}
	err := checkPath(name)
	var m *fileOpened
	if err == nil {
		m, _, err = askAny[*fileOpened](ctx, p, p.requests, func(id uint32) []byte { return (&fileOpen{id: id, name: name}).encode() })
	}
	if err == nil && m.entry.Mode.Type()&^fs.ModeDir != 0 {
		err = errOpenedKind
	}
	if err != nil {
		return Info{}, newError("stat", p, name, err)
	}
	e := &m.entry
	return Info{Name: name, Mode: e.Mode, Size: e.Size, ModTime: e.ModTime}, nil
}

// entries returns all entries of a directory, or all exports if name is empty. They count against quota.
func (p *Peer) entries(ctx context.Context, name string, quota *treeQuota) (all []fileEntry, err error) {
	if name != "" {
		if err := checkPath(name); err != nil {
			return nil, err
		}
	}
	for after := ""; ; {
		m, _, err := askAny[*fileEntries](ctx, p, p.requests, func(id uint32) []byte { return (&fileList{id, name, after}).encode() })
		if err != nil {
			return nil, err
		}
		for _, e := range m.entries {
			if e.Name <= after {
				return nil, fmt.Errorf("%w: entries are not in order", rpc.ErrProtocol)
			}
			after = e.Name
			if err := quota.add(len(name) + len(e.Name) + len(e.Link)); err != nil {
				return nil, err
			}
		}
		if all = append(all, m.entries...); !m.more {
			return all, nil
		}
	}
}

// treeQuota counts the entries, and the bytes of their names, against maxNames and maxTreeNames.
type treeQuota struct{ entries, names int }

// add counts one entry.
func (q *treeQuota) add(names int) error {
	q.entries++
	if q.names += names; q.entries > maxNames || q.names > maxTreeNames {
		return fmt.Errorf("%w: more than %d entries, or %d MiB of names", ErrTooLong, maxNames, maxTreeNames>>20)
	}
	return nil
}
