package protocol

// SendMessageRequest is the header of SEND_MESSAGE (10, long names), SEND_MESSAGE_V2 (310) and
// SEND_BATCH_MESSAGE (320, one-letter names). It decodes both.
//
// Topic, ProducerGroup, DefaultTopic and Properties are views of the frame when it was decoded: valid until the
// handler returns.
type SendMessageRequest struct {
	ProducerGroup         []byte
	Topic                 []byte
	DefaultTopic          []byte
	DefaultTopicQueueNums int32
	QueueID               int32 // < 0: the broker picks
	SysFlag               int32
	BornTimestamp         int64 // ms
	Flag                  int32
	Properties            []byte // encoded as package message says
	ReconsumeTimes        int32
	UnitMode              bool
	Batch                 bool
	MaxReconsumeTimes     int32
	HasMaxReconsumeTimes  bool
	BrokerName            []byte
}

// DecodeFields implements FieldsDecoder.
func (h *SendMessageRequest) DecodeFields(f Fields) (err error) {
	*h = SendMessageRequest{}
	var topic, queue bool
	num := func(key, v []byte, dst *int32) {
		x, ok := number(v, 32)
		if !ok && err == nil {
			err = notNumber(string(key), v, 32)
		}
		*dst = int32(x)
	}
	for i := range f {
		k, v := f[i].Key, f[i].Value
		if len(k) == 1 {
			switch k[0] {
			case 'a':
				h.ProducerGroup = v
			case 'b':
				h.Topic, topic = v, true
			case 'c':
				h.DefaultTopic = v
			case 'd':
				num(k, v, &h.DefaultTopicQueueNums)
			case 'e':
				num(k, v, &h.QueueID)
				queue = true
			case 'f':
				num(k, v, &h.SysFlag)
			case 'g':
				x, ok := number(v, 64)
				if !ok && err == nil {
					err = notNumber("g", v, 64)
				}
				h.BornTimestamp = x
			case 'h':
				num(k, v, &h.Flag)
			case 'i':
				h.Properties = v
			case 'j':
				num(k, v, &h.ReconsumeTimes)
			case 'k':
				h.UnitMode = parseBool(v)
			case 'l':
				num(k, v, &h.MaxReconsumeTimes)
				h.HasMaxReconsumeTimes = true
			case 'm':
				h.Batch = parseBool(v)
			case 'n':
				h.BrokerName = v
			}
			continue
		}
		switch string(k) {
		case "producerGroup":
			h.ProducerGroup = v
		case "topic":
			h.Topic, topic = v, true
		case "defaultTopic":
			h.DefaultTopic = v
		case "defaultTopicQueueNums":
			num(k, v, &h.DefaultTopicQueueNums)
		case "queueId":
			num(k, v, &h.QueueID)
			queue = true
		case "sysFlag":
			num(k, v, &h.SysFlag)
		case "bornTimestamp":
			x, ok := number(v, 64)
			if !ok && err == nil {
				err = notNumber("bornTimestamp", v, 64)
			}
			h.BornTimestamp = x
		case "flag":
			num(k, v, &h.Flag)
		case "properties":
			h.Properties = v
		case "reconsumeTimes":
			num(k, v, &h.ReconsumeTimes)
		case "unitMode":
			h.UnitMode = parseBool(v)
		case "batch":
			h.Batch = parseBool(v)
		case "maxReconsumeTimes":
			num(k, v, &h.MaxReconsumeTimes)
			h.HasMaxReconsumeTimes = true
		case "bname":
			h.BrokerName = v
		}
	}
	switch {
	case err != nil:
		return err
	case !topic || len(h.Topic) == 0:
		return &FieldError{Field: "topic", Missing: true}
	case !queue:
		return &FieldError{Field: "queueId", Missing: true}
	}
	return nil
}

// EncodeFields implements FieldsEncoder with the one-letter names of codes 310 and 320.
func (h *SendMessageRequest) EncodeFields(w *FieldWriter) {
	w.Bytes("a", h.ProducerGroup)
	w.Bytes("b", h.Topic)
	w.Bytes("c", h.DefaultTopic)
	w.Int("d", int64(h.DefaultTopicQueueNums))
	w.Int("e", int64(h.QueueID))
	w.Int("f", int64(h.SysFlag))
	w.Int("g", h.BornTimestamp)
	w.Int("h", int64(h.Flag))
	w.Bytes("i", h.Properties)
	w.Int("j", int64(h.ReconsumeTimes))
	w.Bool("k", h.UnitMode)
	if h.HasMaxReconsumeTimes {
		w.Int("l", int64(h.MaxReconsumeTimes))
	}
	w.Bool("m", h.Batch)
	if len(h.BrokerName) > 0 {
		w.Bytes("n", h.BrokerName)
	}
}

// SendMessageResponse is the header of the answer to a send.
type SendMessageResponse struct {
	MsgID         string // offset message id; for a batch all of them, comma separated
	QueueID       int32
	QueueOffset   int64  // of the (first) message
	TransactionID string // the unique key
	Region        string // MSG_REGION; clients read it unasked
	TraceOn       string // TRACE_ON
}

// EncodeFields implements FieldsEncoder.
func (h *SendMessageResponse) EncodeFields(w *FieldWriter) {
	w.Int("queueId", int64(h.QueueID))
	if h.TransactionID != "" {
		w.String("transactionId", h.TransactionID)
	}
	w.String("msgId", h.MsgID)
	w.String("TRACE_ON", h.TraceOn)
	w.String("MSG_REGION", h.Region)
	w.Int("queueOffset", h.QueueOffset)
}

// DecodeFields implements FieldsDecoder.
func (h *SendMessageResponse) DecodeFields(f Fields) error {
	*h = SendMessageResponse{}
	for i := range f {
		v := f[i].Value
		switch string(f[i].Key) {
		case "msgId":
			h.MsgID = string(v)
		case "transactionId":
			h.TransactionID = string(v)
		case "queueId":
			x, err := parseInt("queueId", v, 32)
			if err != nil {
				return err
			}
			h.QueueID = int32(x)
		case "queueOffset":
			x, err := parseInt("queueOffset", v, 64)
			if err != nil {
				return err
			}
			h.QueueOffset = x
		case "MSG_REGION":
			h.Region = string(v)
		case "TRACE_ON":
			h.TraceOn = string(v)
		}
	}
	if h.MsgID == "" {
		return &FieldError{Field: "msgId", Missing: true}
	}
	return nil
}

// SendRefusal is the header of a refused send: region and tracing alone.
type SendRefusal struct{ Region, TraceOn string }

// EncodeFields implements FieldsEncoder.
func (h *SendRefusal) EncodeFields(w *FieldWriter) {
	w.String("TRACE_ON", h.TraceOn)
	w.String("MSG_REGION", h.Region)
}

// ConsumerSendMsgBackRequest is the header of CONSUMER_SEND_MSG_BACK (36).
type ConsumerSendMsgBackRequest struct {
	Offset            int64  `f:"offset,required"` // physical
	Group             string `f:"group,required"`
	DelayLevel        int32  `f:"delayLevel"` // < 0: dead-letter queue, 0: the broker picks
	OriginMsgID       string `f:"originMsgId"`
	OriginTopic       string `f:"originTopic"`
	UnitMode          bool   `f:"unitMode"`
	MaxReconsumeTimes *int32 `f:"maxReconsumeTimes"`
}
