package message

// Names of topics that mean something to brokers and clients alike (Java's TopicValidator and MixAll).
const (
	TemplateTopic = "TBW102"              // what a producer names as the template of a topic that doesn't exist yet
	ScheduleTopic = "SCHEDULE_TOPIC_XXXX" // where messages wait for their delay, one queue a level; the X's are part of the name
	HalfTopic     = "RMQ_SYS_TRANS_HALF_TOPIC"
	OpHalfTopic   = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
	CheckMaxTopic = "TRANS_CHECK_MAX_TIME_TOPIC" // transactions that were asked for too often
	TraceTopic    = "RMQ_SYS_TRACE_TOPIC"        // where clients send traces, unless they are told another
	SelfTestTopic = "SELF_TEST_TOPIC"
	MovedTopic    = "OFFSET_MOVED_EVENT"
)

// What the topic of a group's retries, and of its dead letters, has in front of the group's name.
const (
	RetryPrefix = "%RETRY%"
	DLQPrefix   = "%DLQ%"
)

// ForbidsSend reports whether a topic belongs to the broker, so that clients may not send to it (Java's
// not-allowed-send list).
func ForbidsSend(topic string) bool {
	switch topic {
	case ScheduleTopic, HalfTopic, OpHalfTopic, CheckMaxTopic, SelfTestTopic, MovedTopic:
		return true
	}
	return false
}
