package protocol

import (
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
)

// DataVersion orders the states of a table: by StateVersion, then Counter, then Timestamp. Two are equal when
// all three are.
type DataVersion struct {
	Counter      int64 `json:"counter"`
	StateVersion int64 `json:"stateVersion"`
	Timestamp    int64 `json:"timestamp"` // ms
}

// Advance returns the next version.
func (v DataVersion) Advance(ms int64) DataVersion {
	v.Counter++
	v.Timestamp = ms
	return v
}

// MessageQueue names one queue of a topic on one broker.
type MessageQueue struct {
	BrokerName string `json:"brokerName"`
	QueueID    int32  `json:"queueId"`
	Topic      string `json:"topic"`
}

// QueueData is what a route says of one broker's queues of the topic.
type QueueData struct {
	BrokerName     string `json:"brokerName"`
	Perm           int32  `json:"perm"` // 4 read, 2 write, 1 inherit
	ReadQueueNums  int32  `json:"readQueueNums"`
	TopicSysFlag   int32  `json:"topicSysFlag"`
	WriteQueueNums int32  `json:"writeQueueNums"`
}

// BrokerData names the addresses of one broker: id → address, 0 being the master.
type BrokerData struct {
	BrokerAddrs        BrokerAddrs `json:"brokerAddrs"`
	BrokerName         string      `json:"brokerName"`
	Cluster            string      `json:"cluster"`
	EnableActingMaster bool        `json:"enableActingMaster"`
	ZoneName           string      `json:"zoneName,omitempty"`
}

// BrokerAddrs maps broker ids to addresses. It is written in ascending order without white space, which the
// Apache Go client's parser relies on.
type BrokerAddrs map[int64]string

// IDs returns the ids in ascending order.
func (a BrokerAddrs) IDs() []int64 {
	ids := make([]int64, 0, len(a))
	for id := range a {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

// MarshalJSON implements json.Marshaler.
func (a BrokerAddrs) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, id := range a.IDs() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = strconv.AppendInt(b, id, 10)
		b = append(b, '"', ':')
		b = AppendJSONString(b, a[id])
	}
	return append(b, '}'), nil
}

// TopicRouteData is the body of the answer to GET_ROUTEINFO_BY_TOPIC.
type TopicRouteData struct {
	BrokerDatas               []BrokerData               `json:"brokerDatas"`
	FilterServerTable         map[string][]string        `json:"filterServerTable"`
	OrderTopicConf            string                     `json:"orderTopicConf,omitempty"`
	QueueDatas                []QueueData                `json:"queueDatas"`
	TopicQueueMappingByBroker map[string]json.RawMessage `json:"topicQueueMappingByBroker,omitempty"`
}

// ClusterInfo is the body of the answer to GET_BROKER_CLUSTER_INFO.
type ClusterInfo struct {
	BrokerAddrTable  map[string]BrokerData `json:"brokerAddrTable"`
	ClusterAddrTable map[string][]string   `json:"clusterAddrTable"`
}

// MemberGroup is the body of the answer to GET_BROKER_MEMBER_GROUP.
type MemberGroup struct {
	BrokerMemberGroup struct {
		BrokerAddrs BrokerAddrs `json:"brokerAddrs"`
		BrokerName  string      `json:"brokerName"`
		Cluster     string      `json:"cluster"`
	} `json:"brokerMemberGroup"`
}

// TopicList is a list of names; BrokerAddr is set in a few answers.
type TopicList struct {
	BrokerAddr string   `json:"brokerAddr,omitempty"`
	TopicList  []string `json:"topicList"`
}

// GroupList is the body of the answer to QUERY_TOPIC_CONSUME_BY_WHO.
type GroupList struct {
	GroupList []string `json:"groupList"`
}

// KVTable is a table of texts.
type KVTable struct {
	Table map[string]string `json:"table"`
}

// TopicConfig is one topic's configuration as the wire and topics.json hold it.
type TopicConfig struct {
	Attributes      map[string]string `json:"attributes"`
	Order           bool              `json:"order"`
	Perm            int32             `json:"perm"`
	ReadQueueNums   int32             `json:"readQueueNums"`
	TopicFilterType string            `json:"topicFilterType"` // SINGLE_TAG or MULTI_TAG
	TopicName       string            `json:"topicName"`
	TopicSysFlag    int32             `json:"topicSysFlag"` // 1 unit, 2 unit subscription
	WriteQueueNums  int32             `json:"writeQueueNums"`
}

// UnmarshalJSON takes Java's defaults for fields that are absent.
func (c *TopicConfig) UnmarshalJSON(b []byte) error {
	type plain TopicConfig
	v := plain{Perm: 6, ReadQueueNums: 16, WriteQueueNums: 16, TopicFilterType: "SINGLE_TAG", Attributes: map[string]string{}}
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*c = TopicConfig(v)
	return nil
}

// TopicConfigWrapper is the topic table of a broker: the body of GET_ALL_TOPIC_CONFIG and part of a registration.
type TopicConfigWrapper struct {
	DataVersion              DataVersion                `json:"dataVersion"`
	MappingDataVersion       *DataVersion               `json:"mappingDataVersion,omitempty"`
	TopicConfigTable         map[string]TopicConfig     `json:"topicConfigTable"`
	TopicQueueMappingDetails map[string]json.RawMessage `json:"topicQueueMappingDetailMap,omitempty"`
	TopicQueueMappingInfo    map[string]json.RawMessage `json:"topicQueueMappingInfoMap,omitempty"`
}

// SubscriptionData is one subscription of a consumer.
type SubscriptionData struct {
	ClassFilterMode bool     `json:"classFilterMode"`
	CodeSet         Codes    `json:"codeSet"`
	ExpressionType  string   `json:"expressionType"` // TAG (default) or SQL92
	SubString       string   `json:"subString"`
	SubVersion      int64    `json:"subVersion"`
	TagsSet         []string `json:"tagsSet"`
	Topic           string   `json:"topic"`
}

// Codes are the hash codes of tags. The Apache Go client writes them as texts.
type Codes []int32

// UnmarshalJSON takes numbers and numbers in quotes.
func (c *Codes) UnmarshalJSON(b []byte) error {
	var list []json.Number
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*c = make(Codes, 0, len(list))
	for _, n := range list {
		x, err := strconv.ParseInt(n.String(), 10, 32)
		if err != nil {
			return fmt.Errorf("hash code %q: %w", n, err)
		}
		*c = append(*c, int32(x))
	}
	return nil
}

// ConsumerData is one consumer group of a heartbeat.
type ConsumerData struct {
	ConsumeFromWhere    string             `json:"consumeFromWhere"`
	ConsumeType         string             `json:"consumeType"` // CONSUME_ACTIVELY, CONSUME_PASSIVELY, CONSUME_POP
	GroupName           string             `json:"groupName"`
	MessageModel        string             `json:"messageModel"` // BROADCASTING or CLUSTERING
	SubscriptionDataSet []SubscriptionData `json:"subscriptionDataSet"`
	UnitMode            bool               `json:"unitMode"`
}

// ProducerData is one producer group of a heartbeat.
type ProducerData struct {
	GroupName string `json:"groupName"`
}

// HeartbeatData is the body of HEART_BEAT.
type HeartbeatData struct {
	ClientID             string         `json:"clientID"`
	ConsumerDataSet      []ConsumerData `json:"consumerDataSet"`
	HeartbeatFingerprint int32          `json:"heartbeatFingerprint"`
	ProducerDataSet      []ProducerData `json:"producerDataSet"`
	WithoutSub           bool           `json:"withoutSub"`
	// StopsWhenDisconnected is Apogee's: the client promises to stop work when its connection is lost.
	StopsWhenDisconnected bool `json:"apogeeStopsWhenDisconnected,omitempty"`
}

// ConsumerIDList is the body of the answer to GET_CONSUMER_LIST_BY_GROUP.
type ConsumerIDList struct {
	ConsumerIDList []string `json:"consumerIdList"`
}

// LockBatchRequest is the body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.
type LockBatchRequest struct {
	ClientID       string         `json:"clientId"`
	ConsumerGroup  string         `json:"consumerGroup"`
	MQSet          []MessageQueue `json:"mqSet"`
	OnlyThisBroker bool           `json:"onlyThisBroker"`
	// WantHolders is Apogee's: the answer to a lock request is to name who holds what the caller doesn't get.
	WantHolders bool `json:"apogeeWantHolders,omitempty"`
	// Committed is Apogee's: the offsets of what is unlocked are in, so nobody has to wait for them.
	Committed bool `json:"apogeeCommitted,omitempty"`
}

// LockHolder says who holds a queue's lock.
type LockHolder struct {
	Queue    MessageQueue `json:"queue"`
	ClientID string       `json:"clientId"`
}

// LockBatchResponse is the body of the answer to LOCK_BATCH_MQ: the queues the caller holds.
type LockBatchResponse struct {
	LockOKMQSet []MessageQueue `json:"lockOKMQSet"`
	Holders     []LockHolder   `json:"apogeeHolders,omitempty"` // see LockBatchRequest.WantHolders
}

// CheckClientRequest is the body of CHECK_CLIENT_CONFIG.
type CheckClientRequest struct {
	ClientID         string           `json:"clientId"`
	Group            string           `json:"group"`
	Namespace        string           `json:"namespace"`
	SubscriptionData SubscriptionData `json:"subscriptionData"`
}

// RetryPolicy is a group's groupRetryPolicy.
type RetryPolicy struct {
	CustomizedRetryPolicy  json.RawMessage `json:"customizedRetryPolicy,omitempty"`
	ExponentialRetryPolicy json.RawMessage `json:"exponentialRetryPolicy,omitempty"`
	Type                   string          `json:"type"`
}

// SubscriptionGroupConfig is one consumer group's configuration as the wire and subscriptionGroup.json hold it.
type SubscriptionGroupConfig struct {
	Attributes                     map[string]string `json:"attributes"`
	BrokerID                       int64             `json:"brokerId"`
	ConsumeBroadcastEnable         bool              `json:"consumeBroadcastEnable"`
	ConsumeEnable                  bool              `json:"consumeEnable"`
	ConsumeFromMinEnable           bool              `json:"consumeFromMinEnable"`
	ConsumeMessageOrderly          bool              `json:"consumeMessageOrderly"`
	ConsumeTimeoutMinute           int32             `json:"consumeTimeoutMinute"`
	GroupName                      string            `json:"groupName"`
	GroupRetryPolicy               RetryPolicy       `json:"groupRetryPolicy"`
	GroupSysFlag                   int32             `json:"groupSysFlag"`
	NotifyConsumerIdsChangedEnable bool              `json:"notifyConsumerIdsChangedEnable"`
	RetryMaxTimes                  int32             `json:"retryMaxTimes"`
	RetryQueueNums                 int32             `json:"retryQueueNums"`
	SubscriptionDataSet            json.RawMessage   `json:"subscriptionDataSet,omitempty"`
	WhichBrokerWhenConsumeSlowly   int64             `json:"whichBrokerWhenConsumeSlowly"`
}

// DefaultSubscriptionGroup returns Java's defaults for a group.
func DefaultSubscriptionGroup(name string) SubscriptionGroupConfig {
	return SubscriptionGroupConfig{
		Attributes: map[string]string{}, ConsumeBroadcastEnable: true, ConsumeEnable: true, ConsumeFromMinEnable: true,
		ConsumeTimeoutMinute: 15, GroupName: name, GroupRetryPolicy: RetryPolicy{Type: "CUSTOMIZED"},
		NotifyConsumerIdsChangedEnable: true, RetryMaxTimes: 16, RetryQueueNums: 1, WhichBrokerWhenConsumeSlowly: 1,
	}
}

// UnmarshalJSON takes Java's defaults for fields that are absent.
func (c *SubscriptionGroupConfig) UnmarshalJSON(b []byte) error {
	type plain SubscriptionGroupConfig
	v := plain(DefaultSubscriptionGroup(""))
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*c = SubscriptionGroupConfig(v)
	return nil
}

// SubscriptionGroupWrapper is the group table of a broker: the body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG and
// subscriptionGroup.json.
type SubscriptionGroupWrapper struct {
	DataVersion            DataVersion                        `json:"dataVersion"`
	ForbiddenTable         map[string]map[string]int32        `json:"forbiddenTable"`
	SubscriptionGroupTable map[string]SubscriptionGroupConfig `json:"subscriptionGroupTable"`
}

// OffsetWrapper is one progress of a group in a queue, in ConsumeStats.
type OffsetWrapper struct {
	BrokerOffset   int64 `json:"brokerOffset"`
	ConsumerOffset int64 `json:"consumerOffset"`
	LastTimestamp  int64 `json:"lastTimestamp"` // ms
	PullOffset     int64 `json:"pullOffset"`
}

// ConsumeStats is the body of the answer to GET_CONSUME_STATS.
type ConsumeStats struct {
	ConsumeTps  Double
	OffsetTable map[MessageQueue]OffsetWrapper
}

// MarshalJSON writes the queues as raw object keys, as Java does.
func (s ConsumeStats) MarshalJSON() ([]byte, error) {
	b := append([]byte(`{"consumeTps":`), s.ConsumeTps.text()...)
	b = append(b, `,"offsetTable":`...)
	b, err := appendQueueMap(b, s.OffsetTable)
	return append(b, '}'), err
}

// TopicOffset is what TopicStatsTable says of one queue.
type TopicOffset struct {
	LastUpdateTimestamp int64 `json:"lastUpdateTimestamp"` // ms
	MaxOffset           int64 `json:"maxOffset"`
	MinOffset           int64 `json:"minOffset"`
}

// TopicStatsTable is the body of the answer to GET_TOPIC_STATS_INFO.
type TopicStatsTable struct {
	OffsetTable map[MessageQueue]TopicOffset
	TopicPutTps Double
}

// MarshalJSON writes the queues as raw object keys, as Java does.
func (s TopicStatsTable) MarshalJSON() ([]byte, error) {
	b, err := appendQueueMap([]byte(`{"offsetTable":`), s.OffsetTable)
	b = append(b, `,"topicPutTps":`...)
	b = append(b, s.TopicPutTps.text()...)
	return append(b, '}'), err
}

// ResetOffsetBody is the body of 220 and of the answer to 222.
type ResetOffsetBody struct{ OffsetTable map[MessageQueue]int64 }

// MarshalJSON writes the queues as raw object keys, as Java does.
func (s ResetOffsetBody) MarshalJSON() ([]byte, error) {
	b, err := appendQueueMap([]byte(`{"offsetTable":`), s.OffsetTable)
	return append(b, '}'), err
}

// appendQueueMap writes a map whose keys are queues the way fastjson does: `{{"brokerName":…}:value,…}`. It isn't
// JSON; EncodeBody keeps it from the encoder's own check.
func appendQueueMap[V any](b []byte, m map[MessageQueue]V) ([]byte, error) {
	queues := make([]MessageQueue, 0, len(m))
	for q := range m {
		queues = append(queues, q)
	}
	SortQueues(queues)
	b = append(b, '{')
	for i, q := range queues {
		if i > 0 {
			b = append(b, ',')
		}
		key, err := json.Marshal(q)
		if err != nil {
			return b, err
		}
		value, err := json.Marshal(m[q])
		if err != nil {
			return b, err
		}
		b = append(append(append(b, key...), ':'), value...)
	}
	return append(b, '}'), nil
}

// SortQueues sorts by topic, broker name and queue id, as Java compares queues.
func SortQueues(queues []MessageQueue) {
	sort.Slice(queues, func(i, j int) bool {
		a, b := queues[i], queues[j]
		if a.Topic != b.Topic {
			return a.Topic < b.Topic
		}
		if a.BrokerName != b.BrokerName {
			return a.BrokerName < b.BrokerName
		}
		return a.QueueID < b.QueueID
	})
}

// Double is a number that is always written with a fraction, as Java's are.
type Double float64

func (d Double) text() string {
	s := strconv.FormatFloat(float64(d), 'f', -1, 64)
	for i := range s {
		if s[i] == '.' {
			return s
		}
	}
	return s + ".0"
}

// MarshalJSON implements json.Marshaler.
func (d Double) MarshalJSON() ([]byte, error) { return []byte(d.text()), nil }

// Connection is one client connection in ConsumerConnection and ProducerConnection.
type Connection struct {
	ClientAddr string `json:"clientAddr"`
	ClientID   string `json:"clientId"`
	Language   string `json:"language"`
	Version    int32  `json:"version"`
}

// ConsumerConnection is the body of the answer to GET_CONSUMER_CONNECTION_LIST.
type ConsumerConnection struct {
	ConnectionSet     []Connection                `json:"connectionSet"`
	ConsumeFromWhere  string                      `json:"consumeFromWhere"`
	ConsumeType       string                      `json:"consumeType"`
	MessageModel      string                      `json:"messageModel"`
	SubscriptionTable map[string]SubscriptionData `json:"subscriptionTable"`
}

// ProducerConnection is the body of the answer to GET_PRODUCER_CONNECTION_LIST.
type ProducerConnection struct {
	ConnectionSet []Connection `json:"connectionSet"`
}

// ProducerInfo is one producer in ProducerTableInfo.
type ProducerInfo struct {
	ClientID            string `json:"clientId"`
	Language            string `json:"language"`
	LastUpdateTimestamp int64  `json:"lastUpdateTimestamp"` // ms
	RemoteIP            string `json:"remoteIP"`
	Version             int32  `json:"version"`
}

// ProducerTableInfo is the body of the answer to GET_ALL_PRODUCER_INFO.
type ProducerTableInfo struct {
	Data map[string][]ProducerInfo `json:"data"`
}

// ConsumeTimeSpan is what QUERY_CONSUME_TIME_SPAN says of one queue; times in ms.
type ConsumeTimeSpan struct {
	ConsumeTimeStamp int64        `json:"consumeTimeStamp"`
	DelayTime        int64        `json:"delayTime"`
	MaxTimeStamp     int64        `json:"maxTimeStamp"`
	MessageQueue     MessageQueue `json:"messageQueue"`
	MinTimeStamp     int64        `json:"minTimeStamp"`
}

// ConsumeTimeSpanBody is the body of its answer.
type ConsumeTimeSpanBody struct {
	ConsumeTimeSpanSet []ConsumeTimeSpan `json:"consumeTimeSpanSet"`
}

// SubscriptionOfConsumer is the body of the answer to QUERY_SUBSCRIPTION_BY_CONSUMER.
type SubscriptionOfConsumer struct {
	Group            string            `json:"group"`
	SubscriptionData *SubscriptionData `json:"subscriptionData,omitempty"`
	Topic            string            `json:"topic"`
}

// GroupForbidden is the body of the answer to UPDATE_AND_GET_GROUP_FORBIDDEN.
type GroupForbidden struct {
	Group    string `json:"group"`
	Readable bool   `json:"readable"`
	Topic    string `json:"topic"`
}

// StatsItem is one window of BrokerStatsData.
type StatsItem struct {
	AvgPt Double `json:"avgpt"`
	Sum   int64  `json:"sum"`
	TPS   Double `json:"tps"`
}

// BrokerStatsData is the body of the answer to VIEW_BROKER_STATS_DATA.
type BrokerStatsData struct {
	StatsDay    StatsItem `json:"statsDay"`
	StatsHour   StatsItem `json:"statsHour"`
	StatsMinute StatsItem `json:"statsMinute"`
}

// bodyEncoder is a body that writes Java's dialect itself; encoding/json would refuse its text.
type bodyEncoder interface{ MarshalJSON() ([]byte, error) }

// EncodeBody returns the body as Java clients read it. It doesn't escape HTML.
func EncodeBody(v any) ([]byte, error) {
	switch v := v.(type) {
	case ConsumeStats, TopicStatsTable, ResetOffsetBody, ConsumerRunningInfo, ConsumerStatus:
		return v.(bodyEncoder).MarshalJSON()
	}
	return json.Marshal(v)
}
