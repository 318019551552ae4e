package goclient

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Topics by the client's admin package: created, changed, listed, deleted.
func TestAdminTopic(t *testing.T) {
	c := begin(t, "admin-topic")
	s := c.server()
	a := c.admin(s)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	topic := c.topic(s, 3)
	listed := func() bool {
		list, err := a.FetchAllTopicList(ctx)
		c.must(err)
		return slices.Contains(list.TopicList, topic)
	}
	if !listed() {
		c.Errorf("the new topic isn't listed")
	}
	clusters, err := a.FetchClusterList(topic)
	if err != nil || len(clusters) != 1 || clusters[0] != "DefaultCluster" {
		c.Errorf("clusters of the topic: %v %v", clusters, err)
	}
	p, in := c.manual(s), &inbox{}
	send := func(q int, body string) error {
		m := message(topic, body)
		m.Queue = s.queue(c, topic, q)
		r, err := p.SendSync(ctx, m)
		if err == nil && r.Status != primitive.SendOK {
			c.Errorf("%v", r)
		}
		return err
	}
	c.must(send(2, "in queue 2"))
	if err := send(3, "in queue 3"); err == nil {
		c.Errorf("a send to a queue beyond the last was taken")
	}
	c.createTopic(s, topic, 6)
	c.must(send(5, "in queue 5"))
	c.push(s, push{topic: topic, handle: in.take("")})
	c.exactly(in, soon, "in queue 2", "in queue 5")

	c.must(a.DeleteTopic(ctx, admin.WithTopicDelete(topic), admin.WithBrokerAddrDelete(s.broker), admin.WithNameSrvAddr([]string{s.names})))
	c.eventually(soon, "the topic is gone", func() bool {
		queues, err := c.admin(s).FetchPublishMessageQueues(ctx, topic)
		return !listed() && (err != nil || len(queues) == 0)
	})
	// A topic of that name made again begins empty.
	c.createTopic(s, topic, 2)
	fresh := &inbox{}
	c.push(s, push{topic: topic, handle: fresh.take("")})
	c.sendBodies(c.producer(s), topic, "fresh")
	c.exactly(fresh, soon, "fresh")
}

// Subscription groups that consumers bring with them are listed.
func TestAdminGroups(t *testing.T) {
	c := begin(t, "admin-groups")
	s := c.server()
	topic, group, in := c.topic(s, 2), c.unique("group"), &inbox{}
	c.sendBodies(c.producer(s), topic, "x")
	c.push(s, push{group: group, topic: topic, handle: in.take("")})
	c.exactly(in, soon, "x")
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	list, err := c.admin(s).GetAllSubscriptionGroup(ctx, s.broker, soon)
	c.must(err)
	g, ok := list.SubscriptionGroupTable[group]
	if !ok || !g.ConsumeEnable || g.RetryMaxTimes != 16 || g.RetryQueueNums != 1 {
		c.Errorf("the group is listed as %+v (found: %v)", g, ok)
	}
}

// The client has no call that looks a message up, by id or by key: neither its consumers nor its admin package.
func TestQueryByIDAndKey(t *testing.T) {
	begin(t, "query-by-id-and-key").skip("the client has no call for it, neither in its consumers nor in its admin package")
}
