package protocol

import "encoding/json"

// Bodies that clients answer with.

// ProcessQueueInfo is what a consumer says of one queue in ConsumerRunningInfo.
type ProcessQueueInfo struct {
	CachedMsgCount          int64 `json:"cachedMsgCount"`
	CachedMsgMaxOffset      int64 `json:"cachedMsgMaxOffset"`
	CachedMsgMinOffset      int64 `json:"cachedMsgMinOffset"`
	CachedMsgSizeInMiB      int64 `json:"cachedMsgSizeInMiB"`
	CommitOffset            int64 `json:"commitOffset"`
	Dropped                 bool  `json:"droped"` // so spelt on the wire
	LastConsumeTimestamp    int64 `json:"lastConsumeTimestamp"`
	LastLockTimestamp       int64 `json:"lastLockTimestamp"`
	LastPullTimestamp       int64 `json:"lastPullTimestamp"`
	Locked                  bool  `json:"locked"`
	TransactionMsgCount     int64 `json:"transactionMsgCount"`
	TransactionMsgMaxOffset int64 `json:"transactionMsgMaxOffset"`
	TransactionMsgMinOffset int64 `json:"transactionMsgMinOffset"`
	TryUnlockTimes          int64 `json:"tryUnlockTimes"`
}

// ConsumerRunningInfo is the body of the answer to GET_CONSUMER_RUNNING_INFO.
type ConsumerRunningInfo struct {
	Jstack          string
	Properties      map[string]string
	SubscriptionSet []SubscriptionData
	MQTable         map[MessageQueue]ProcessQueueInfo
}

// MarshalJSON writes the queues as raw object keys, as Java does.
func (s ConsumerRunningInfo) MarshalJSON() ([]byte, error) {
	b, err := appendQueueMap([]byte(`{"mqTable":`), s.MQTable)
	if err != nil {
		return nil, err
	}
	rest, err := json.Marshal(struct {
		Jstack          string             `json:"jstack,omitempty"`
		MQPopTable      struct{}           `json:"mqPopTable"`
		Properties      map[string]string  `json:"properties"`
		StatusTable     struct{}           `json:"statusTable"`
		SubscriptionSet []SubscriptionData `json:"subscriptionSet"`
	}{Jstack: s.Jstack, Properties: s.Properties, SubscriptionSet: s.SubscriptionSet})
	if err != nil {
		return nil, err
	}
	return append(append(b, ','), rest[1:]...), nil
}

// ConsumerStatus is the body of the answer to GET_CONSUMER_STATUS_FROM_CLIENT.
type ConsumerStatus struct{ MessageQueueTable map[MessageQueue]int64 }

// MarshalJSON writes the queues as raw object keys, as Java does.
func (s ConsumerStatus) MarshalJSON() ([]byte, error) {
	b, err := appendQueueMap([]byte(`{"messageQueueTable":`), s.MessageQueueTable)
	return append(b, '}'), err
}

// ConsumeDirectlyResult is the body of the answer to CONSUME_MESSAGE_DIRECTLY.
type ConsumeDirectlyResult struct {
	AutoCommit     bool   `json:"autoCommit"`
	ConsumeResult  string `json:"consumeResult"` // CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION …
	Order          bool   `json:"order"`
	Remark         string `json:"remark,omitempty"`
	SpentTimeMills int64  `json:"spentTimeMills"`
}
