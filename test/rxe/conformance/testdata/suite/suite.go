package suite

type env struct{}

type test struct {
	name string
	run  func(e *env)
}

type family struct {
	name       string
	tests      []test
	unreliable bool
}

var families = []family{
	{name: "send", tests: sendTests},
	{name: "uc", tests: ucTests, unreliable: true},
}

var sendTests = []test{
	{"Sizes", sendSizes},
	{"Cases", func(e *env) { e.cases(3) }},
	{"Parts", sendParts},
}

var ucTests = []test{
	{"Drops", ucDrops},
	{"SQE", ucSQE},
}

// Messages of all sizes arrive (IBTA 9.5, ibv_post_send(3)), 1.5
// of them. This is no promise.
func sendSizes(*env) {}

// Every case | fails.
func (*env) cases(int) {}

// It has parts.
func sendParts(*env) {}

// Nothing is told.
func ucDrops(*env) {}

func ucSQE(*env) {}
