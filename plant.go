package ibverbx

// plant is a set of mistakes that the engine makes if it is built with the tag plant and
// told to (plant_on.go). Without the tag there are none, and they cost nothing.
type plant uint8

// Mistakes. Each breaks one rule that a promise rests on.
const (
	plantReplayEarly   plant = 1 << iota // replays what a lane had before the peer's Down has come
	plantReplayAtomic                    // replays an atomic in doubt
	plantCompleteEarly                   // lets a completion end the request behind it too
	plantLoseNumber                      // leaves a sequence number out now and then
	plantDropRefused                     // takes a fragment that the NIC refused for one that it took
)
