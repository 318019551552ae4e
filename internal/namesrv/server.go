package namesrv

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"encoding/json"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/message"
	"github.com/apogeemq/apogee/internal/metafile"
	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
	"github.com/apogeemq/apogee/internal/vfs"
)

// orderNamespace is the KV namespace of ordered topics.
const orderNamespace = "ORDER_TOPIC_CONFIG"

// Options are a name server's settings.
type Options struct {
	FS               vfs.FS
	KVPath           string        // kvConfigPath; "" keeps the KV configuration in memory
	OrderMessages    bool          // orderMessageEnable: ordered topics in route answers
	ReturnOrder      bool          // returnOrderTopicConfigToBroker
	TopicLists       bool          // enableTopicList
	AllTopicList     bool          // enableAllTopicList
	DeleteUnreported bool          // deleteTopicWithBrokerRegistration
	ActingMaster     bool          // supportActingMaster
	ScanEvery        time.Duration // scanNotActiveBrokerInterval
	Settings         func() string // GET_NAMESRV_CONFIG's text
	// EnsureRetryTopic makes a group's %RETRY% topic in a broker of this process before its route is answered.
	EnsureRetryTopic func(group string) bool
	Logger           *slog.Logger
	Now              func() time.Time
}

// Server answers a name server's requests. Serve is safe for concurrent use.
type Server struct {
	o     Options
	table *Table
	kv    kv
	stop  chan struct{}
	wg    sync.WaitGroup
	ended atomic.Bool
}

// kv is the KV configuration: namespace → key → value, in one file.
type kv struct {
	mu    sync.RWMutex
	table map[string]map[string]string
}

type kvFile struct {
	ConfigTable map[string]map[string]string `json:"configTable"`
}

// New returns a name server; it loads the KV configuration and starts looking for silent brokers.
func New(o Options) (*Server, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{o: o, table: NewTable(), stop: make(chan struct{}), kv: kv{table: map[string]map[string]string{}}}
	s.table.DeleteUnreported, s.table.ActingMaster = o.DeleteUnreported, o.ActingMaster
	if o.KVPath != "" {
		_, notes, err := metafile.Load(o.FS, o.KVPath, func(b []byte) error {
			var f kvFile
			if err := fastjson.Unmarshal(b, &f); err != nil {
				return err
			}
			if f.ConfigTable == nil {
				return errors.New("it has no configTable")
			}
			s.kv.table = f.ConfigTable
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("name server: %w", err)
		}
		for _, n := range notes {
			o.Logger.Warn("metadata: " + n)
		}
	}
	s.wg.Go(s.scan)
	return s, nil
}

// Table returns the route table, for a broker in the same process.
func (s *Server) Table() *Table { return s.table }

// Close stops looking for silent brokers.
func (s *Server) Close() {
	if s.ended.CompareAndSwap(false, true) {
		close(s.stop)
		s.wg.Wait()
	}
}

func (s *Server) scan() {
	t := time.NewTicker(s.o.ScanEvery)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			for _, name := range s.table.Expire(s.o.Now()) {
				s.o.Logger.Warn("a broker was silent for too long and was dropped", "broker", name)
			}
		}
	}
}

// ConnClosed drops at once what registered through the connection.
func (s *Server) ConnClosed(c *remoting.Conn, _ error) {
	for _, name := range s.table.ConnClosed(c.ID()) {
		s.o.Logger.Info("a broker's connection ended and it was dropped", "broker", name, "remote", c.RemoteAddr())
	}
}

// refusal is a handler's error with its code and remark.
type refusal struct {
	code   protocol.ResponseCode
	remark string
}

func (r *refusal) Error() string { return r.remark }

func refuse(code protocol.ResponseCode, format string, args ...any) error {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// Serve implements remoting.Handler.
func (s *Server) Serve(c *remoting.Conn, req *remoting.Command) {
	r, err := s.answer(c, req)
	if err != nil {
		var known *refusal
		var field *protocol.FieldError
		switch {
		case errors.As(err, &known):
			r = &remoting.Response{Code: known.code, Remark: known.remark}
		case errors.As(err, &field):
			r = &remoting.Response{Code: protocol.InvalidParameter, Remark: field.Error()}
		default:
			r = &remoting.Response{Code: protocol.SystemError, Remark: err.Error()}
		}
	}
	_ = c.Reply(req, r)
}

func asker(c *remoting.Conn) Asker { return Asker{Local: c.LocalAddr().Addr()} }

func body(v any) (*remoting.Response, error) {
	raw, err := protocol.EncodeBody(v)
	return &remoting.Response{Body: raw}, err
}

func (s *Server) answer(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	switch code := protocol.RequestCode(req.Code); code {
	case protocol.GetRouteInfoByTopic:
		return s.route(c, req)
	case protocol.RegisterBroker:
		return s.register(c, req)
	case protocol.UnregisterBroker:
		var h protocol.BrokerIdentityRequest
		if err := protocol.Decode(req.Fields, &h); err != nil {
			return nil, err
		}
		id := int64(0)
		if h.BrokerID != nil {
			id = *h.BrokerID
		}
		s.table.Unregister(h.BrokerName, h.BrokerAddr, id)
		s.o.Logger.Info("broker unregistered", "broker", h.BrokerName, "addr", h.BrokerAddr)
		return &remoting.Response{}, nil
	case protocol.BrokerHeartbeat, protocol.QueryDataVersion:
		return s.touch(req)
	case protocol.GetBrokerClusterInfo:
		return body(s.table.Cluster(asker(c)))
	case protocol.GetBrokerMemberGroup:
		var h protocol.MemberGroupRequest
		if err := protocol.Decode(req.Fields, &h); err != nil {
			return nil, err
		}
		return body(s.table.MemberGroup(h.ClusterName, h.BrokerName, asker(c)))
	case protocol.GetAllTopicListFromNameserver:
		if !s.o.AllTopicList {
			return nil, refuse(protocol.SystemError, "disable")
		}
		return body(protocol.TopicList{TopicList: s.table.Topics(func(protocol.QueueData, string) bool { return true })})
	case protocol.GetTopicsByCluster, protocol.GetUnitTopicList, protocol.GetHasUnitSubTopicList, protocol.GetHasUnitSubUnUnitTopicList:
		return s.topicList(code, req)
	case protocol.GetSystemTopicListFromNS:
		return body(s.table.SystemTopics(asker(c)))
	case protocol.PutKVConfig, protocol.GetKVConfig, protocol.DeleteKVConfig, protocol.GetKVListByNamespace:
		return s.kvRequest(code, req)
	case protocol.WipeWritePermOfBroker, protocol.AddWritePermOfBroker:
		var h protocol.BrokerNameRequest
		if err := protocol.Decode(req.Fields, &h); err != nil {
			return nil, err
		}
		if code == protocol.WipeWritePermOfBroker {
			n := s.table.SetPerm(h.BrokerName, func(p int32) int32 { return p &^ permWrite })
			return &remoting.Response{Header: &protocol.WipeWritePermResponse{WipeTopicCount: n}}, nil
		}
		n := s.table.SetPerm(h.BrokerName, func(int32) int32 { return permRead | permWrite })
		return &remoting.Response{Header: &protocol.AddWritePermResponse{AddTopicCount: n}}, nil
	case protocol.RegisterTopicInNamesrv:
		var h protocol.TopicRequest
		if err := protocol.Decode(req.Fields, &h); err != nil {
			return nil, err
		}
		var r protocol.TopicRouteData
		if err := fastjson.Unmarshal(req.Body, &r); err != nil {
			return nil, refuse(protocol.SystemError, "route body: %s", err)
		}
		s.table.AddQueues(h.Topic, r.QueueDatas)
		return &remoting.Response{}, nil
	case protocol.DeleteTopicInNamesrv:
		var h protocol.TopicRequest
		if err := protocol.Decode(req.Fields, &h); err != nil {
			return nil, err
		}
		s.table.DeleteTopic(h.Topic, h.ClusterName)
		return &remoting.Response{}, nil
	case protocol.GetNamesrvConfig:
		return &remoting.Response{Body: []byte(s.o.Settings())}, nil
	case protocol.UpdateNamesrvConfig:
		return nil, refuse(protocol.NoPermission, "Can not update config in black list. settings don't change over the wire here: set them in the server's file and start it again")
	}
	return remoting.NotSupported(req.Code), nil
}

func (s *Server) register(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.RegisterBrokerRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	if h.BodyCRC32 != 0 && uint32(h.BodyCRC32) != crc32.ChecksumIEEE(req.Body)&0x7FFFFFFF {
		return nil, refuse(protocol.SystemError, "crc32 not match")
	}
	b, err := protocol.DecodeRegisterBroker(req.Body, h.Compressed, req.Version)
	if err != nil {
		return nil, refuse(protocol.SystemError, "registration of %s: %s", h.BrokerName, err)
	}
	r := Report{Cluster: h.ClusterName, Name: h.BrokerName, Addr: h.BrokerAddr, HAAddr: h.HAServerAddr, Zone: h.ZoneName, ID: h.BrokerID,
		ActingMaster: h.EnableActingMaster, Conn: c.ID(), Filters: b.FilterServerList, Topics: b.TopicConfig}
	if h.HeartbeatTimeoutMillis != nil {
		r.Timeout = time.Duration(*h.HeartbeatTimeoutMillis) * time.Millisecond
	}
	if h.RetryTopicQueues != nil {
		r.RetryQueues = *h.RetryTopicQueues
	}
	out, err := s.Register(r)
	if err != nil {
		return nil, refuse(protocol.SystemError, "%s", err)
	}
	resp := &remoting.Response{Header: &protocol.RegisterBrokerResponse{MasterAddr: out.MasterAddr, HAServerAddr: out.HAAddr}}
	if table := s.OrderedTopics(); len(table) > 0 {
		resp.Body, err = protocol.EncodeBody(protocol.KVTable{Table: table})
	}
	return resp, err
}

// Register takes a report.
func (s *Server) Register(r Report) (Outcome, error) { return s.table.Register(r, s.o.Now()) }

// OrderedTopics returns the ordered topics that brokers are told of.
func (s *Server) OrderedTopics() map[string]string {
	if !s.o.ReturnOrder {
		return nil
	}
	s.kv.mu.RLock()
	defer s.kv.mu.RUnlock()
	return maps.Clone(s.kv.table[orderNamespace])
}

func (s *Server) touch(req *remoting.Command) (*remoting.Response, error) {
	var h protocol.BrokerIdentityRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	known, ok := s.table.Touch(h.BrokerName, h.BrokerAddr, s.o.Now())
	if protocol.RequestCode(req.Code) == protocol.BrokerHeartbeat {
		return &remoting.Response{}, nil
	}
	var theirs protocol.DataVersion
	if err := fastjson.Unmarshal(req.Body, &theirs); err != nil {
		return nil, refuse(protocol.SystemError, "data version body: %s", err)
	}
	resp := &remoting.Response{Header: &protocol.QueryDataVersionResponse{Changed: !ok || known != theirs}}
	var err error
	if ok {
		resp.Body, err = protocol.EncodeBody(known)
	}
	return resp, err
}

func (s *Server) topicList(code protocol.RequestCode, req *remoting.Command) (*remoting.Response, error) {
	if !s.o.TopicLists {
		return nil, refuse(protocol.SystemError, "disable")
	}
	var keep func(q protocol.QueueData, cluster string) bool
	switch code {
	case protocol.GetTopicsByCluster:
		var h protocol.ClusterRequest
		if err := protocol.Decode(req.Fields, &h); err != nil {
			return nil, err
		}
		keep = func(_ protocol.QueueData, cluster string) bool { return cluster == h.Cluster }
	case protocol.GetUnitTopicList:
		keep = func(q protocol.QueueData, _ string) bool { return q.TopicSysFlag&1 != 0 }
	case protocol.GetHasUnitSubTopicList:
		keep = func(q protocol.QueueData, _ string) bool { return q.TopicSysFlag&2 != 0 }
	default:
		keep = func(q protocol.QueueData, _ string) bool { return q.TopicSysFlag&3 == 2 }
	}
	return body(protocol.TopicList{TopicList: s.table.Topics(keep)})
}

// route handles GET_ROUTEINFO_BY_TOPIC (105). The answer is strict JSON for everybody: the parsers of old clients
// read quoted keys as well.
func (s *Server) route(c *remoting.Conn, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.RouteRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	if group, ok := strings.CutPrefix(h.Topic, message.RetryPrefix); ok && s.o.EnsureRetryTopic != nil {
		s.o.EnsureRetryTopic(group)
	}
	r, ok := s.table.Route(h.Topic, asker(c))
	if !ok {
		return nil, refuse(protocol.TopicNotExist, "No topic route info in name server for the topic: %s\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.", h.Topic)
	}
	if s.o.OrderMessages {
		s.kv.mu.RLock()
		r.OrderTopicConf = s.kv.table[orderNamespace][h.Topic]
		s.kv.mu.RUnlock()
	}
	if h.ZoneMode && h.ZoneName != "" {
		r = inZone(r, h.ZoneName)
	}
	return body(r)
}

// inZone keeps the brokers of a zone, and those without a master.
func inZone(r protocol.TopicRouteData, zone string) protocol.TopicRouteData {
	kept := map[string]bool{}
	r.BrokerDatas = slices.DeleteFunc(r.BrokerDatas, func(d protocol.BrokerData) bool {
		kept[d.BrokerName] = strings.EqualFold(d.ZoneName, zone) || d.BrokerAddrs[0] == ""
		return !kept[d.BrokerName]
	})
	r.QueueDatas = slices.DeleteFunc(r.QueueDatas, func(q protocol.QueueData) bool { return !kept[q.BrokerName] })
	return r
}

func (s *Server) kvRequest(code protocol.RequestCode, req *remoting.Command) (*remoting.Response, error) {
	var h protocol.KVConfigRequest
	if err := protocol.Decode(req.Fields, &h); err != nil {
		return nil, err
	}
	if h.Namespace == nil || h.Key == nil && code != protocol.GetKVListByNamespace {
		return nil, refuse(protocol.SystemError, "namespace or key is null")
	}
	s.kv.mu.Lock()
	defer s.kv.mu.Unlock()
	space := s.kv.table[*h.Namespace]
	switch code {
	case protocol.GetKVConfig:
		v, ok := space[*h.Key]
		if !ok {
			return nil, refuse(protocol.QueryNotFound, "No config item, Namespace: %s Key: %s", *h.Namespace, *h.Key)
		}
		return &remoting.Response{Header: &protocol.KVConfigResponse{Value: v}}, nil
	case protocol.GetKVListByNamespace:
		if space == nil {
			return nil, refuse(protocol.QueryNotFound, "No config item, Namespace: %s", *h.Namespace)
		}
		return body(protocol.KVTable{Table: space})
	case protocol.PutKVConfig:
		if space == nil {
			space = map[string]string{}
			s.kv.table[*h.Namespace] = space
		}
		space[*h.Key] = h.Value
	default:
		delete(space, *h.Key)
	}
	return &remoting.Response{}, s.saveKVLocked()
}

func (s *Server) saveKVLocked() error {
	if s.o.KVPath == "" {
		return nil
	}
	raw, err := json.MarshalIndent(kvFile{s.kv.table}, "", "\t")
	if err != nil {
		return err
	}
	if err := s.o.FS.MkdirAll(filepath.Dir(s.o.KVPath)); err != nil {
		return err
	}
	return metafile.Save(s.o.FS, s.o.KVPath, raw)
}
