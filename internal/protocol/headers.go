package protocol

// Headers of the requests that are not hot, decoded by their tags (see Decode). Field names are Java's.

// RouteRequest is the header of GET_ROUTEINFO_BY_TOPIC (105).
type RouteRequest struct {
	Topic                  string `f:"topic,required"`
	AcceptStandardJSONOnly bool   `f:"acceptStandardJsonOnly"`
	ZoneMode               bool   `f:"__ZONE_MODE"`
	ZoneName               string `f:"__ZONE_NAME"`
}

// RegisterBrokerRequest is the header of REGISTER_BROKER (103).
type RegisterBrokerRequest struct {
	BrokerName             string `f:"brokerName,required"`
	BrokerAddr             string `f:"brokerAddr,required"`
	ClusterName            string `f:"clusterName,required"`
	HAServerAddr           string `f:"haServerAddr"`
	BrokerID               int64  `f:"brokerId,required"`
	HeartbeatTimeoutMillis *int64 `f:"heartbeatTimeoutMillis"`
	EnableActingMaster     *bool  `f:"enableActingMaster"`
	Compressed             bool   `f:"compressed"`
	BodyCRC32              int32  `f:"bodyCrc32"`
	ZoneName               string `f:"__ZONE_NAME"`
	// RetryTopicQueues is Apogee's: the broker makes a group's %RETRY% topic with so many queues when the
	// group's first consumer says hello, so the name server may name its route before. Java has no such field.
	RetryTopicQueues *int32 `f:"apogeeRetryTopicQueues"`
}

// RegisterBrokerResponse is the header of its answer; only slaves get values.
type RegisterBrokerResponse struct {
	HAServerAddr string `f:"haServerAddr"`
	MasterAddr   string `f:"masterAddr"`
}

// BrokerIdentityRequest is the header of UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322) and BROKER_HEARTBEAT
// (904).
type BrokerIdentityRequest struct {
	BrokerName  string `f:"brokerName,required"`
	BrokerAddr  string `f:"brokerAddr,required"`
	ClusterName string `f:"clusterName,required"`
	BrokerID    *int64 `f:"brokerId"`
}

// QueryDataVersionResponse is the header of the answer to QUERY_DATA_VERSION.
type QueryDataVersionResponse struct {
	Changed bool `f:"changed"`
}

// TopicRequest is the header of the requests that name a topic: 215, 216 (with a cluster), 217, 202, 300, 351 …
type TopicRequest struct {
	Topic       string `f:"topic,required"`
	ClusterName string `f:"clusterName"`
}

// KVConfigRequest is the header of PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102) and
// GET_KVLIST_BY_NAMESPACE (219, without key).
type KVConfigRequest struct {
	Namespace *string `f:"namespace"`
	Key       *string `f:"key"`
	Value     string  `f:"value"`
}

// KVConfigResponse is the header of the answer to GET_KV_CONFIG.
type KVConfigResponse struct {
	Value string `f:"value"`
}

// BrokerNameRequest is the header of 205 and 327.
type BrokerNameRequest struct {
	BrokerName string `f:"brokerName,required"`
}

// WipeWritePermResponse and AddWritePermResponse are the headers of the answers to 205 and 327.
type WipeWritePermResponse struct {
	WipeTopicCount int32 `f:"wipeTopicCount"`
}

// AddWritePermResponse see WipeWritePermResponse.
type AddWritePermResponse struct {
	AddTopicCount int32 `f:"addTopicCount"`
}

// ClusterRequest is the header of GET_TOPICS_BY_CLUSTER (224).
type ClusterRequest struct {
	Cluster string `f:"cluster,required"`
}

// MemberGroupRequest is the header of GET_BROKER_MEMBER_GROUP (901).
type MemberGroupRequest struct {
	ClusterName string `f:"clusterName,required"`
	BrokerName  string `f:"brokerName,required"`
}

// MinBrokerIDChange is the header of NOTIFY_MIN_BROKER_ID_CHANGE (905), name server to broker.
type MinBrokerIDChange struct {
	MinBrokerID       *int64 `f:"minBrokerId"`
	BrokerName        string `f:"brokerName"`
	MinBrokerAddr     string `f:"minBrokerAddr"`
	OfflineBrokerAddr string `f:"offlineBrokerAddr"`
	HABrokerAddr      string `f:"haBrokerAddr"`
}

// HeartbeatResponse is the header of the answer to HEART_BEAT (34).
type HeartbeatResponse struct {
	SupportV2          bool `f:"IS_SUPPORT_HEART_BEAT_V2"`
	SubscriptionChange bool `f:"IS_SUB_CHANGE"`
}

// UnregisterClientRequest is the header of UNREGISTER_CLIENT (35).
type UnregisterClientRequest struct {
	ClientID      string `f:"clientID,required"`
	ProducerGroup string `f:"producerGroup"`
	ConsumerGroup string `f:"consumerGroup"`
}

// ConsumerGroupRequest is the header of GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40) and
// GET_CONSUMER_CONNECTION_LIST (203).
type ConsumerGroupRequest struct {
	ConsumerGroup string `f:"consumerGroup,required"`
}

// ProducerGroupRequest is the header of GET_PRODUCER_CONNECTION_LIST (204).
type ProducerGroupRequest struct {
	ProducerGroup string `f:"producerGroup,required"`
}

// GroupRequest is the header of the requests whose field is plainly "group": 343, 345, 352.
type GroupRequest struct {
	Group string `f:"group,required"`
	Topic string `f:"topic"`
}

// CreateTopicRequest is the header of UPDATE_AND_CREATE_TOPIC (17).
type CreateTopicRequest struct {
	Topic           string `f:"topic,required"`
	DefaultTopic    string `f:"defaultTopic"`
	ReadQueueNums   int32  `f:"readQueueNums,required"`
	WriteQueueNums  int32  `f:"writeQueueNums,required"`
	Perm            int32  `f:"perm,required"`
	TopicFilterType string `f:"topicFilterType"`
	TopicSysFlag    int32  `f:"topicSysFlag"`
	Order           bool   `f:"order"`
	Attributes      string `f:"attributes"`
	Force           bool   `f:"force"`
}

// DeleteSubscriptionGroupRequest is the header of DELETE_SUBSCRIPTIONGROUP (207).
type DeleteSubscriptionGroupRequest struct {
	GroupName   string `f:"groupName,required"`
	CleanOffset bool   `f:"cleanOffset"`
}

// ForbiddenRequest is the header of UPDATE_AND_GET_GROUP_FORBIDDEN (353).
type ForbiddenRequest struct {
	Group    string `f:"group,required"`
	Topic    string `f:"topic,required"`
	Readable *bool  `f:"readable"`
}

// ConsumeStatsRequest is the header of GET_CONSUME_STATS (208).
type ConsumeStatsRequest struct {
	ConsumerGroup string `f:"consumerGroup,required"`
	Topic         string `f:"topic"`
	TopicList     string `f:"topicList"` // ;-separated
}

// ConsumeTimeSpanRequest is the header of QUERY_CONSUME_TIME_SPAN (303).
type ConsumeTimeSpanRequest struct {
	Topic string `f:"topic,required"`
	Group string `f:"group,required"`
}

// ResetOffsetRequest is the header of INVOKE_BROKER_TO_RESET_OFFSET (222).
type ResetOffsetRequest struct {
	Topic     string `f:"topic,required"`
	Group     string `f:"group,required"`
	QueueID   *int32 `f:"queueId"`
	Offset    *int64 `f:"offset"`
	Timestamp int64  `f:"timestamp,required"` // ms; < 0: the end
	IsForce   bool   `f:"isForce"`
}

// RelayRequest is the header of GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309).
type RelayRequest struct {
	ConsumerGroup string `f:"consumerGroup,required"`
	ClientID      string `f:"clientId"`
	JstackEnable  bool   `f:"jstackEnable"`
	MsgID         string `f:"msgId"`
	BrokerName    string `f:"brokerName"`
	Topic         string `f:"topic"`
	TopicSysFlag  *int32 `f:"topicSysFlag"`
	GroupSysFlag  *int32 `f:"groupSysFlag"`
}

// BrokerStatsRequest is the header of VIEW_BROKER_STATS_DATA (315).
type BrokerStatsRequest struct {
	StatsName string `f:"statsName,required"`
	StatsKey  string `f:"statsKey,required"`
}

// BrokerConfigResponse is the header of the answer to GET_BROKER_CONFIG (26).
type BrokerConfigResponse struct {
	Version string `f:"version"` // a DataVersion as JSON
}
