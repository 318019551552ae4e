package client

import "github.com/apogeemq/apogee/internal/message"

// MessageForTesting is a message as a consumer of c gets it, with the given encoded properties.
func MessageForTesting(c *Client, topic, broker, properties string, body []byte) *Message {
	return c.fromRecord(broker, &message.Message{Topic: topic, Properties: []byte(properties), Body: body})
}
