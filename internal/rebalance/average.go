package rebalance

import "slices"

// Average gives each client a run of neighbouring queues, the first clients one more where it doesn't divide: Java's
// default. Eight queues, three clients: 0–2, 3–5, 6–7.
// Source: AllocateMessageQueueAveragely.
type Average struct{}

// Name implements Strategy.
func (Average) Name() string { return "AVG" }

// Allocate implements Strategy.
func (Average) Allocate(_, clientID string, queues []Queue, clients []string) ([]Queue, error) {
	i, err := member(clientID, queues, clients)
	if err != nil || i < 0 {
		return nil, err
	}
	share, rest := len(queues)/len(clients), len(queues)%len(clients)
	from := i*share + min(i, rest)
	if i < rest {
		share++
	}
	return slices.Clone(queues[from : from+share]), nil
}

// AverageByCircle deals the queues out one by one. Eight queues, three clients: 0 3 6, 1 4 7, 2 5.
// Source: AllocateMessageQueueAveragelyByCircle.
type AverageByCircle struct{}

// Name implements Strategy.
func (AverageByCircle) Name() string { return "AVG_BY_CIRCLE" }

// Allocate implements Strategy.
func (AverageByCircle) Allocate(_, clientID string, queues []Queue, clients []string) ([]Queue, error) {
	i, err := member(clientID, queues, clients)
	if err != nil || i < 0 {
		return nil, err
	}
	var out []Queue
	for ; i < len(queues); i += len(clients) {
		out = append(out, queues[i])
	}
	return out, nil
}
