package rebalance

import (
	"fmt"
	"slices"
	"strings"
)

// Config gives its member the configured queues, whoever else is in the group.
// Source: AllocateMessageQueueByConfig.
type Config struct {
	Queues []Queue
}

// Name implements Strategy.
func (Config) Name() string { return "CONFIG" }

// Allocate implements Strategy. It looks at none of its arguments.
func (s Config) Allocate(_, _ string, _ []Queue, _ []string) ([]Queue, error) {
	return slices.Clone(s.Queues), nil
}

// MachineRoom shares out the queues of brokers in some rooms and leaves the others to nobody. A broker says its room
// in its name: <room>@<name>.
//
// Each client gets a run of neighbours of equal length, and the first ones one more each from the end. Seven queues,
// three clients: 0 1 6, 2 3, 4 5.
// Source: AllocateMessageQueueByMachineRoom.
type MachineRoom struct {
	Rooms []string // the rooms whose queues are consumed
}

// Name implements Strategy.
func (MachineRoom) Name() string { return "MACHINE_ROOM" }

// Allocate implements Strategy.
func (s MachineRoom) Allocate(_, clientID string, queues []Queue, clients []string) ([]Queue, error) {
	i, err := member(clientID, queues, clients)
	if err != nil || i < 0 {
		return nil, err
	}
	var in []Queue
	for _, q := range queues {
		if room, ok := roomOf(q.Broker); ok && slices.Contains(s.Rooms, room) {
			in = append(in, q)
		}
	}
	share, rest := len(in)/len(clients), len(in)%len(clients)
	out := slices.Clone(in[share*i : share*(i+1)])
	if i < rest {
		out = append(out, in[share*len(clients)+i])
	}
	return out, nil
}

// roomOf returns the room in a broker's name: the first of exactly two parts around an @. Java's split drops empty
// parts at the end, so "room@name@" has two parts and "room@" one.
func roomOf(broker string) (string, bool) {
	room, name, ok := strings.Cut(strings.TrimRight(broker, "@"), "@")
	return room, ok && !strings.Contains(name, "@")
}

// Resolver says where things are. Names must be the same wherever the group runs; an empty one is an error.
type Resolver interface {
	BrokerRoom(q Queue) string
	ClientRoom(clientID string) string
}

// MachineRoomNearby shares out the queues of each room among the clients of that room, by Inner. Queues of rooms
// without a client are shared out by Inner among all clients, room by room.
// Source: AllocateMachineRoomNearby.
type MachineRoomNearby struct {
	Inner    Strategy
	Resolver Resolver
}

// Name implements Strategy.
func (s MachineRoomNearby) Name() string {
	if s.Inner == nil {
		return "MACHINE_ROOM_NEARBY"
	}
	return "MACHINE_ROOM_NEARBY-" + s.Inner.Name()
}

// Allocate implements Strategy.
func (s MachineRoomNearby) Allocate(group, clientID string, queues []Queue, clients []string) ([]Queue, error) {
	if s.Inner == nil || s.Resolver == nil {
		return nil, fmt.Errorf("%s needs an inner strategy and a resolver of rooms", s.Name())
	}
	i, err := member(clientID, queues, clients)
	if err != nil || i < 0 {
		return nil, err
	}
	byRoom := make(map[string][]Queue)
	for _, q := range queues {
		room := s.Resolver.BrokerRoom(q)
		if room == "" {
			return nil, fmt.Errorf("the resolver gives no room for %v", q)
		}
		byRoom[room] = append(byRoom[room], q)
	}
	inRoom := make(map[string][]string)
	for _, c := range clients {
		room := s.Resolver.ClientRoom(c)
		if room == "" {
			return nil, fmt.Errorf("the resolver gives no room for client %s", c)
		}
		inRoom[room] = append(inRoom[room], c)
	}
	var out []Queue
	mine := s.Resolver.ClientRoom(clientID)
	if near := byRoom[mine]; len(near) > 0 {
		if out, err = by(s.Inner, group, clientID, near, inRoom[mine], "queues of room "+mine); err != nil {
			return nil, err
		}
	}
	rooms := make([]string, 0, len(byRoom))
	for room := range byRoom {
		rooms = append(rooms, room)
	}
	slices.SortFunc(rooms, Compare)
	for _, room := range rooms {
		if len(inRoom[room]) > 0 {
			continue
		}
		more, err := by(s.Inner, group, clientID, byRoom[room], clients, "queues of room "+room+", which has no client")
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}
