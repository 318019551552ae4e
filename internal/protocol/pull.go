package protocol

// Bits of PullMessageRequest.SysFlag (Java's PullSysFlag).
const (
	PullCommitOffset int32 = 1 << iota
	PullSuspend
	PullSubscription
	PullClassFilter
	PullLite
)

// PullMessageRequest is the header of PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). Its byte slices are views
// of the frame when it was decoded.
type PullMessageRequest struct {
	ConsumerGroup        []byte
	Topic                []byte
	QueueID              int32
	QueueOffset          int64
	MaxMsgNums           int32
	SysFlag              int32
	CommitOffset         int64
	SuspendTimeoutMillis int64
	Subscription         []byte
	SubVersion           int64
	ExpressionType       []byte
	BrokerName           []byte
}

// DecodeFields implements FieldsDecoder.
func (h *PullMessageRequest) DecodeFields(f Fields) (err error) {
	*h = PullMessageRequest{}
	const group, topic, queue, offset, count, flag = 1, 2, 4, 8, 16, 32
	seen := 0
	num := func(key string, v []byte, bits int) int64 {
		x, ok := number(v, bits)
		if !ok && err == nil {
			err = notNumber(key, v, bits)
		}
		return x
	}
	for i := range f {
		v := f[i].Value
		switch string(f[i].Key) {
		case "consumerGroup":
			h.ConsumerGroup = v
			seen |= group
		case "topic":
			h.Topic = v
			seen |= topic
		case "queueId":
			h.QueueID = int32(num("queueId", v, 32))
			seen |= queue
		case "queueOffset":
			h.QueueOffset = num("queueOffset", v, 64)
			seen |= offset
		case "maxMsgNums":
			h.MaxMsgNums = int32(num("maxMsgNums", v, 32))
			seen |= count
		case "sysFlag":
			h.SysFlag = int32(num("sysFlag", v, 32))
			seen |= flag
		case "commitOffset":
			h.CommitOffset = num("commitOffset", v, 64)
		case "suspendTimeoutMillis":
			h.SuspendTimeoutMillis = num("suspendTimeoutMillis", v, 64)
		case "subscription":
			h.Subscription = v
		case "subVersion":
			h.SubVersion = num("subVersion", v, 64)
		case "expressionType":
			h.ExpressionType = v
		case "bname":
			h.BrokerName = v
		}
	}
	if err != nil {
		return err
	}
	for i, name := range [...]string{"consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"} {
		if seen&(1<<i) == 0 {
			return &FieldError{Field: name, Missing: true}
		}
	}
	return nil
}

// EncodeFields implements FieldsEncoder.
func (h *PullMessageRequest) EncodeFields(w *FieldWriter) {
	w.Bytes("consumerGroup", h.ConsumerGroup)
	w.Bytes("topic", h.Topic)
	w.Int("queueId", int64(h.QueueID))
	w.Int("queueOffset", h.QueueOffset)
	w.Int("maxMsgNums", int64(h.MaxMsgNums))
	w.Int("sysFlag", int64(h.SysFlag))
	w.Int("commitOffset", h.CommitOffset)
	w.Int("suspendTimeoutMillis", h.SuspendTimeoutMillis)
	if len(h.Subscription) > 0 {
		w.Bytes("subscription", h.Subscription)
	}
	w.Int("subVersion", h.SubVersion)
	if len(h.ExpressionType) > 0 {
		w.Bytes("expressionType", h.ExpressionType)
	}
	if len(h.BrokerName) > 0 {
		w.Bytes("bname", h.BrokerName)
	}
}

// PullMessageResponse is the header of the answer to a pull.
type PullMessageResponse struct {
	SuggestWhichBrokerID int64
	NextBeginOffset      int64
	MinOffset            int64
	MaxOffset            int64
	TopicSysFlag         int32
	GroupSysFlag         int32
	ForbiddenType        int32 // 0: none; see the broker's pull handler
}

// EncodeFields implements FieldsEncoder.
func (h *PullMessageResponse) EncodeFields(w *FieldWriter) {
	w.Int("suggestWhichBrokerId", h.SuggestWhichBrokerID)
	w.Int("groupSysFlag", int64(h.GroupSysFlag))
	w.Int("nextBeginOffset", h.NextBeginOffset)
	w.Int("maxOffset", h.MaxOffset)
	w.Int("minOffset", h.MinOffset)
	w.Int("topicSysFlag", int64(h.TopicSysFlag))
	if h.ForbiddenType != 0 {
		w.Int("forbiddenType", int64(h.ForbiddenType))
	}
}

// DecodeFields implements FieldsDecoder.
func (h *PullMessageResponse) DecodeFields(f Fields) (err error) {
	*h = PullMessageResponse{}
	for i := range f {
		k := string(f[i].Key)
		switch k {
		case "suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset", "topicSysFlag", "groupSysFlag", "forbiddenType":
		default:
			continue
		}
		x, err := parseInt(k, f[i].Value, 64)
		if err != nil {
			return err
		}
		switch k {
		case "suggestWhichBrokerId":
			h.SuggestWhichBrokerID = x
		case "nextBeginOffset":
			h.NextBeginOffset = x
		case "minOffset":
			h.MinOffset = x
		case "maxOffset":
			h.MaxOffset = x
		case "topicSysFlag":
			h.TopicSysFlag = int32(x)
		case "groupSysFlag":
			h.GroupSysFlag = int32(x)
		case "forbiddenType":
			h.ForbiddenType = int32(x)
		}
	}
	return nil
}

// QueryConsumerOffsetRequest is the header of QUERY_CONSUMER_OFFSET (14).
type QueryConsumerOffsetRequest struct {
	ConsumerGroup     string `f:"consumerGroup,required"`
	Topic             string `f:"topic,required"`
	QueueID           int32  `f:"queueId,required"`
	SetZeroIfNotFound *bool  `f:"setZeroIfNotFound"`
}

// UpdateConsumerOffsetRequest is the header of UPDATE_CONSUMER_OFFSET (15).
type UpdateConsumerOffsetRequest struct {
	ConsumerGroup string `f:"consumerGroup,required"`
	Topic         string `f:"topic,required"`
	QueueID       int32  `f:"queueId,required"`
	CommitOffset  int64  `f:"commitOffset,required"`
	// Open is Apogee's: what beyond CommitOffset isn't done, as "upTo:begin-end,begin-end"; everything else below upTo
	// is. It is kept with the offset and told by QUERY_CONSUMER_OFFSET.
	Open string `f:"apogeeOpen"`
}

// QueryConsumerOffsetResponse is the header of the answer to QUERY_CONSUMER_OFFSET.
type QueryConsumerOffsetResponse struct {
	Offset int64  `f:"offset,required"`
	Open   string `f:"apogeeOpen"` // see UpdateConsumerOffsetRequest
}

// OffsetResponse is the header of answers that are an offset (29, 30, 31).
type OffsetResponse struct {
	Offset int64 `f:"offset,required"`
}

// TimestampResponse is the header of the answer to GET_EARLIEST_MSG_STORETIME (32), in ms.
type TimestampResponse struct {
	Timestamp int64 `f:"timestamp,required"`
}

// SearchOffsetRequest is the header of SEARCH_OFFSET_BY_TIMESTAMP (29).
type SearchOffsetRequest struct {
	Topic        string `f:"topic,required"`
	QueueID      int32  `f:"queueId,required"`
	Timestamp    int64  `f:"timestamp,required"` // ms
	BoundaryType string `f:"boundaryType"`       // LOWER (default) or UPPER, in any case of letters
}

// QueueRequest is the header of the requests that name a queue: GET_MAX_OFFSET (30), GET_MIN_OFFSET (31),
// GET_EARLIEST_MSG_STORETIME (32).
type QueueRequest struct {
	Topic     string `f:"topic,required"`
	QueueID   int32  `f:"queueId,required"`
	Committed *bool  `f:"committed"`
}

// QueryMessageRequest is the header of QUERY_MESSAGE (12).
type QueryMessageRequest struct {
	Topic          string `f:"topic,required"`
	Key            string `f:"key,required"`
	MaxNum         int32  `f:"maxNum,required"`
	BeginTimestamp int64  `f:"beginTimestamp,required"` // ms
	EndTimestamp   int64  `f:"endTimestamp,required"`   // ms
	UniqueKeyQuery bool   `f:"_UNIQUE_KEY_QUERY"`
}

// QueryMessageResponse is the header of its answer.
type QueryMessageResponse struct {
	IndexLastUpdateTimestamp int64 `f:"indexLastUpdateTimestamp"`
	IndexLastUpdatePhyoffset int64 `f:"indexLastUpdatePhyoffset"`
}

// ViewMessageRequest is the header of VIEW_MESSAGE_BY_ID (33).
type ViewMessageRequest struct {
	Topic  string `f:"topic"`
	Offset int64  `f:"offset,required"` // physical
}
