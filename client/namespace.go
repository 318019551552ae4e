package client

import (
	"strings"

	"github.com/apogeemq/apogee/internal/message"
)

// Names on the wire: with a namespace, topics and groups have it in front ("ns%name"); retry and dead-letter topics
// behind their prefix ("%RETRY%ns%group"). System names stay as they are (Java's NamespaceUtil).

// systemNames are not wrapped: topics and groups that belong to the server.
func systemName(name string) bool {
	switch name {
	case message.TemplateTopic, message.ScheduleTopic, "BenchmarkTest", message.HalfTopic, message.TraceTopic, message.OpHalfTopic,
		message.CheckMaxTopic, message.SelfTestTopic, message.MovedTopic, "DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "TOOLS_CONSUMER",
		"FILTERSRV_CONSUMER", "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP":
		return true
	}
	return strings.HasPrefix(name, "rmq_sys_") || strings.HasPrefix(name, "CID_RMQ_SYS_") || strings.HasSuffix(name, "_REPLY_TOPIC")
}

// wrap returns a topic's or group's name on the wire.
func (c *Client) wrap(name string) string {
	ns := c.o.namespace
	if ns == "" || name == "" || systemName(name) {
		return name
	}
	prefix := ""
	for _, p := range []string{message.RetryPrefix, message.DLQPrefix} {
		if rest, ok := strings.CutPrefix(name, p); ok {
			prefix, name = p, rest
		}
	}
	if strings.HasPrefix(name, ns+"%") {
		return prefix + name
	}
	return prefix + ns + "%" + name
}

// unwrap is the reverse of wrap.
func (c *Client) unwrap(name string) string {
	ns := c.o.namespace
	if ns == "" {
		return name
	}
	prefix := ""
	for _, p := range []string{message.RetryPrefix, message.DLQPrefix} {
		if rest, ok := strings.CutPrefix(name, p); ok {
			prefix, name = p, rest
		}
	}
	return prefix + strings.TrimPrefix(name, ns+"%")
}
