package verbs

import "fmt"

// EventType is the type of an asynchronous event.
type EventType uint8

// Event types, numbered as in enum ibv_event_type.
const (
	EventCQErr            EventType = 0  // CQ overrun or failure; Event.CQ
	EventQPFatal          EventType = 1  // QP failure; Event.QP
	EventQPReqErr         EventType = 2  // invalid request received; Event.QP
	EventQPAccessErr      EventType = 3  // access violation by the peer; Event.QP
	EventCommEst          EventType = 4  // first packet received in RTR; Event.QP
	EventSQDrained        EventType = 5  // send queue drained (SQD); Event.QP
	EventPathMig          EventType = 6  // path migrated; Event.QP
	EventPathMigErr       EventType = 7  // path migration failed; Event.QP
	EventDeviceFatal      EventType = 8  // device failure; reopen the device
	EventPortActive       EventType = 9  // link up; Event.Port
	EventPortErr          EventType = 10 // link down; Event.Port
	EventLIDChange        EventType = 11 // LID changed; Event.Port
	EventPKeyChange       EventType = 12 // P_Key table changed; Event.Port
	EventSMChange         EventType = 13 // subnet manager changed; Event.Port
	EventSRQErr           EventType = 14 // SRQ failure; Event.SRQ
	EventSRQLimitReached  EventType = 15 // fewer receives than the limit; Event.SRQ
	EventLastWQEReached   EventType = 16 // last receive of an SRQ consumed; Event.QP
	EventClientReregister EventType = 17 // subnet manager requests reregistration; Event.Port
	EventGIDChange        EventType = 18 // GID table changed; Event.Port
	EventWQFatal          EventType = 19 // work queue failure; unused by this package
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
