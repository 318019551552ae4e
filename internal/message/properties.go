package message

import (
	"bytes"
	"iter"
)

// Properties are encoded as key, NameSeparator, value, PropertySeparator for each pair, end to end, in storage
// and on the wire alike. A missing last separator is accepted; a pair with an empty key or value is none; of
// two pairs with one key the last counts. Order means nothing. (Java's MessageDecoder.string2messageProperties.)
const (
	NameSeparator     = 1
	PropertySeparator = 2
)

// System properties (Java's MessageConst). Users may not set them.
const (
	PropertyKeys                = "KEYS" // index keys, space separated
	PropertyTags                = "TAGS"
	PropertyWaitStoreMsgOK      = "WAIT"
	PropertyDelayLevel          = "DELAY"
	PropertyRetryTopic          = "RETRY_TOPIC"
	PropertyRealTopic           = "REAL_TOPIC"
	PropertyRealQueueID         = "REAL_QID"
	PropertyTransactionPrepared = "TRAN_MSG"
	PropertyProducerGroup       = "PGROUP"
	PropertyUniqueKey           = "UNIQ_KEY"
	PropertyCluster             = "CLUSTER"
	PropertyMsgRegion           = "MSG_REGION"
	PropertyTraceOn             = "TRACE_ON"
	PropertyMinOffset           = "MIN_OFFSET"
	PropertyMaxOffset           = "MAX_OFFSET"
	PropertyOriginMessageID     = "ORIGIN_MESSAGE_ID"
	PropertyReconsumeTime       = "RECONSUME_TIME"
	PropertyMaxReconsumeTimes   = "MAX_RECONSUME_TIMES"
	PropertyConsumeStartTime    = "CONSUME_START_TIME"
	PropertyInnerNum            = "INNER_NUM"
	PropertyInnerBase           = "INNER_BASE"
	PropertyPopCheckpoint       = "POP_CK"
	PropertyShardingKey         = "__SHARDINGKEY"
	PropertyTimerDelaySec       = "TIMER_DELAY_SEC"
	PropertyTimerDelayMs        = "TIMER_DELAY_MS"
	PropertyTimerDeliverMs      = "TIMER_DELIVER_MS"
	PropertyCRC32               = "__CRC32#"
)

// Property returns the value of key, a view of props, and whether it is there.
func Property(props []byte, key string) (value []byte, ok bool) {
	if key == "" {
		return nil, false
	}
	for len(props) > 0 {
		pair := props
		if i := bytes.IndexByte(props, PropertySeparator); i >= 0 {
			pair, props = props[:i], props[i+1:]
		} else {
			props = nil
		}
		// key, separator and at least one byte of value
		if len(pair) > len(key)+1 && pair[len(key)] == NameSeparator && string(pair[:len(key)]) == key {
			value, ok = pair[len(key)+1:], true
		}
	}
	return value, ok
}

// Pairs yields the pairs of props in their order, as views; a key that occurs twice is yielded twice.
func Pairs(props []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for len(props) > 0 {
			pair := props
			if i := bytes.IndexByte(props, PropertySeparator); i >= 0 {
				pair, props = props[:i], props[i+1:]
			} else {
				props = nil
			}
			i := bytes.IndexByte(pair, NameSeparator)
			if i <= 0 || i+1 >= len(pair) {
				continue
			}
			if !yield(pair[:i], pair[i+1:]) {
				return
			}
		}
	}
}

// AppendProperty appends one pair to encoded properties, which must be empty or end in a separator.
func AppendProperty(dst []byte, key, value string) []byte {
	dst = append(dst, key...)
	dst = append(dst, NameSeparator)
	dst = append(dst, value...)
	return append(dst, PropertySeparator)
}

// RemoveProperty appends props without the pairs of the given keys to dst, which must not overlap props.
func RemoveProperty(dst, props []byte, keys ...string) []byte {
next:
	for k, v := range Pairs(props) {
		for _, key := range keys {
			if string(k) == key {
				continue next
			}
		}
		dst = append(dst, k...)
		dst = append(dst, NameSeparator)
		dst = append(dst, v...)
		dst = append(dst, PropertySeparator)
	}
	return dst
}

// PropertyMap returns the pairs of props as a map, the last of equal keys winning.
func PropertyMap(props []byte) map[string]string {
	m := make(map[string]string)
	for k, v := range Pairs(props) {
		m[string(k)] = string(v)
	}
	return m
}
