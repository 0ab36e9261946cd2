package verbs

import "fmt"

// EventType is the type of an asynchronous event.
type EventType uint8

// Event types, numbered as in enum ibv_event_type.
const (
	EventCQErr            EventType = 0
	EventQPFatal          EventType = 1
	EventQPReqErr         EventType = 2
	EventQPAccessErr      EventType = 3
	EventCommEst          EventType = 4
	EventSQDrained        EventType = 5
	EventPathMig          EventType = 6
	EventPathMigErr       EventType = 7
	EventDeviceFatal      EventType = 8
	EventPortActive       EventType = 9
	EventPortErr          EventType = 10
	EventLIDChange        EventType = 11
	EventPKeyChange       EventType = 12
	EventSMChange         EventType = 13
	EventSRQErr           EventType = 14
	EventSRQLimitReached  EventType = 15
	EventLastWQEReached   EventType = 16
	EventClientReregister EventType = 17
	EventGIDChange        EventType = 18
	EventWQFatal          EventType = 19
)

// eventText holds the wording of ibv_event_type_str(3).
var eventText = [...]string{
	EventCQErr:            "CQ error",
	EventQPFatal:          "local work queue catastrophic error",
	EventQPReqErr:         "invalid request local work queue error",
	EventQPAccessErr:      "local access violation work queue error",
	EventCommEst:          "communication established",
	EventSQDrained:        "send queue drained",
	EventPathMig:          "path migrated",
	EventPathMigErr:       "path migration request error",
	EventDeviceFatal:      "local catastrophic error",
	EventPortActive:       "port active",
	EventPortErr:          "port error",
	EventLIDChange:        "LID change",
	EventPKeyChange:       "P_Key change",
	EventSMChange:         "SM change",
	EventSRQErr:           "SRQ catastrophic error",
	EventSRQLimitReached:  "SRQ limit reached",
	EventLastWQEReached:   "last WQE reached",
	EventClientReregister: "client reregistration",
	EventGIDChange:        "GID table change",
	EventWQFatal:          "WQ fatal",
}

// String returns the wording of ibv_event_type_str(3).
func (t EventType) String() string {
	if int(t) < len(eventText) {
		return eventText[t]
	}
	return fmt.Sprintf("unknown (%d)", uint8(t))
}

// Event is an asynchronous event. Only the field of the affected object is set; the
// others are nil or 0.
type Event struct {
	Type EventType
	QP   QP
	CQ   CQ
	SRQ  SRQ
	Port uint8
}

// String names the event and the affected object.
func (e Event) String() string {
	switch {
	case e.QP != nil:
		return fmt.Sprintf("%s (QP %#06x)", e.Type, e.QP.Num())
	case e.Port != 0:
		return fmt.Sprintf("%s (port %d)", e.Type, e.Port)
	}
	return e.Type.String()
}
