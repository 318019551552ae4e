package protocol

import (
	"encoding/json"
	"testing"

	"github.com/apogeemq/apogee/internal/fastjson"
)

// TestGoClientHeartbeat: the Apache Go client writes hash codes as texts and leaves fields out.
func TestGoClientHeartbeat(t *testing.T) {
	var hb HeartbeatData
	err := fastjson.Unmarshal([]byte(`{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",
		"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"A || B","tagsSet":["A","B"],"codeSet":["65","66"],"subVersion":5,"expressionType":"TAG"}],"unitMode":false}]}`), &hb)
	if err != nil {
		t.Fatal(err)
	}
	s := hb.ConsumerDataSet[0].SubscriptionDataSet[0]
	if len(s.CodeSet) != 2 || s.CodeSet[1] != 66 || s.SubVersion != 5 {
		t.Errorf("%+v", s)
	}
}

func TestQueueKeys(t *testing.T) {
	b, err := EncodeBody(ResetOffsetBody{OffsetTable: map[MessageQueue]int64{{Topic: "T", BrokerName: "b", QueueID: 1}: 5, {Topic: "T", BrokerName: "b", QueueID: 0}: 6}})
	if err != nil || string(b) != `{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:6,{"brokerName":"b","queueId":1,"topic":"T"}:5}}` {
		t.Errorf("%s, %v", b, err)
	}
	b, err = EncodeBody(ConsumeStats{ConsumeTps: 2, OffsetTable: map[MessageQueue]OffsetWrapper{{Topic: "T"}: {BrokerOffset: 3}}})
	if err != nil || string(b) != `{"consumeTps":2.0,"offsetTable":{{"brokerName":"","queueId":0,"topic":"T"}:{"brokerOffset":3,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}}` {
		t.Errorf("%s, %v", b, err)
	}
	var c TopicConfig
	if err := json.Unmarshal([]byte(`{"topicName":"T"}`), &c); err != nil || c.ReadQueueNums != 16 || c.Perm != 6 {
		t.Errorf("%+v, %v", c, err)
	}
}
