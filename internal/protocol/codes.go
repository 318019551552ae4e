package protocol

import "strconv"

// RequestCode says what a request asks for. The names are Java's RequestCode in Go's spelling.
type RequestCode int32

// ResponseCode says how a request went. Producers retry elsewhere on SystemError, SystemBusy,
// ServiceNotAvailable, NoPermission and TopicNotExist; FlushDiskTimeout, SlaveNotAvailable and FlushSlaveTimeout
// mean that the message is stored.
type ResponseCode int32

// The request codes.
const (
	SendMessage                          RequestCode = 10
	PullMessage                          RequestCode = 11
	QueryMessage                         RequestCode = 12
	QueryBrokerOffset                    RequestCode = 13
	QueryConsumerOffset                  RequestCode = 14
	UpdateConsumerOffset                 RequestCode = 15
	UpdateAndCreateTopic                 RequestCode = 17
	UpdateAndCreateTopicList             RequestCode = 18
	GetAllTopicConfig                    RequestCode = 21
	UpdateBrokerConfig                   RequestCode = 25
	GetBrokerConfig                      RequestCode = 26
	GetBrokerRuntimeInfo                 RequestCode = 28
	SearchOffsetByTimestamp              RequestCode = 29
	GetMaxOffset                         RequestCode = 30
	GetMinOffset                         RequestCode = 31
	GetEarliestMsgStoretime              RequestCode = 32
	ViewMessageByID                      RequestCode = 33
	HeartBeat                            RequestCode = 34
	UnregisterClient                     RequestCode = 35
	ConsumerSendMsgBack                  RequestCode = 36
	EndTransaction                       RequestCode = 37
	GetConsumerListByGroup               RequestCode = 38
	CheckTransactionState                RequestCode = 39
	NotifyConsumerIdsChanged             RequestCode = 40
	LockBatchMQ                          RequestCode = 41
	UnlockBatchMQ                        RequestCode = 42
	GetAllConsumerOffset                 RequestCode = 43
	GetAllDelayOffset                    RequestCode = 45
	CheckClientConfig                    RequestCode = 46
	GetTimerCheckPoint                   RequestCode = 60
	GetTimerMetrics                      RequestCode = 61
	PutKVConfig                          RequestCode = 100
	GetKVConfig                          RequestCode = 101
	DeleteKVConfig                       RequestCode = 102
	RegisterBroker                       RequestCode = 103
	UnregisterBroker                     RequestCode = 104
	GetRouteInfoByTopic                  RequestCode = 105
	GetBrokerClusterInfo                 RequestCode = 106
	UpdateAndCreateSubscriptionGroup     RequestCode = 200
	GetAllSubscriptionGroupConfig        RequestCode = 201
	GetTopicStatsInfo                    RequestCode = 202
	GetConsumerConnectionList            RequestCode = 203
	GetProducerConnectionList            RequestCode = 204
	WipeWritePermOfBroker                RequestCode = 205
	GetAllTopicListFromNameserver        RequestCode = 206
	DeleteSubscriptionGroup              RequestCode = 207
	GetConsumeStats                      RequestCode = 208
	DeleteTopicInBroker                  RequestCode = 215
	DeleteTopicInNamesrv                 RequestCode = 216
	RegisterTopicInNamesrv               RequestCode = 217
	GetKVListByNamespace                 RequestCode = 219
	ResetConsumerClientOffset            RequestCode = 220
	GetConsumerStatusFromClient          RequestCode = 221
	InvokeBrokerToResetOffset            RequestCode = 222
	InvokeBrokerToGetConsumerStatus      RequestCode = 223
	GetTopicsByCluster                   RequestCode = 224
	UpdateAndCreateSubscriptionGroupList RequestCode = 225
	QueryTopicConsumeByWho               RequestCode = 300
	QueryConsumeTimeSpan                 RequestCode = 303
	GetSystemTopicListFromNS             RequestCode = 304
	GetSystemTopicListFromBroker         RequestCode = 305
	CleanExpiredConsumeQueue             RequestCode = 306
	GetConsumerRunningInfo               RequestCode = 307
	QueryCorrectionOffset                RequestCode = 308
	ConsumeMessageDirectly               RequestCode = 309
	SendMessageV2                        RequestCode = 310
	GetUnitTopicList                     RequestCode = 311
	GetHasUnitSubTopicList               RequestCode = 312
	GetHasUnitSubUnUnitTopicList         RequestCode = 313
	CloneGroupOffset                     RequestCode = 314
	ViewBrokerStatsData                  RequestCode = 315
	CleanUnusedTopic                     RequestCode = 316
	GetBrokerConsumeStats                RequestCode = 317
	UpdateNamesrvConfig                  RequestCode = 318
	GetNamesrvConfig                     RequestCode = 319
	SendBatchMessage                     RequestCode = 320
	QueryConsumeQueue                    RequestCode = 321
	QueryDataVersion                     RequestCode = 322
	ResumeCheckHalfMessage               RequestCode = 323
	SendReplyMessage                     RequestCode = 324
	SendReplyMessageV2                   RequestCode = 325
	PushReplyMessageToClient             RequestCode = 326
	AddWritePermOfBroker                 RequestCode = 327
	GetAllProducerInfo                   RequestCode = 328
	DeleteExpiredCommitLog               RequestCode = 329
	QueryTopicsByConsumer                RequestCode = 343
	QuerySubscriptionByConsumer          RequestCode = 345
	GetTopicConfig                       RequestCode = 351
	GetSubscriptionGroupConfig           RequestCode = 352
	UpdateAndGetGroupForbidden           RequestCode = 353
	CheckRocksDBCQWriteProgress          RequestCode = 354
	ExportRocksDBConfigToJSON            RequestCode = 355
	LitePullMessage                      RequestCode = 361
	RecallMessage                        RequestCode = 370
	QueryAssignment                      RequestCode = 400
	SetMessageRequestMode                RequestCode = 401
	GetAllMessageRequestMode             RequestCode = 402
	UpdateAndCreateStaticTopic           RequestCode = 513
	GetBrokerMemberGroup                 RequestCode = 901
	AddBroker                            RequestCode = 902
	RemoveBroker                         RequestCode = 903
	BrokerHeartbeat                      RequestCode = 904
	NotifyMinBrokerIDChange              RequestCode = 905
	ExchangeBrokerHAInfo                 RequestCode = 906
	GetBrokerHAStatus                    RequestCode = 907
	ResetMasterFlushOffset               RequestCode = 908
	GetBrokerEpochCache                  RequestCode = 1007
	PopMessage                           RequestCode = 200050
	AckMessage                           RequestCode = 200051
	PeekMessage                          RequestCode = 200052
	ChangeMessageInvisibleTime           RequestCode = 200053
	Notification                         RequestCode = 200054
	PollingInfo                          RequestCode = 200055
	PopRollback                          RequestCode = 200056
	BatchAckMessage                      RequestCode = 200151
)

// The response codes.
const (
	Success                   ResponseCode = 0
	SystemError               ResponseCode = 1
	SystemBusy                ResponseCode = 2
	RequestCodeNotSupported   ResponseCode = 3
	TransactionFailed         ResponseCode = 4
	FlushDiskTimeout          ResponseCode = 10
	SlaveNotAvailable         ResponseCode = 11
	FlushSlaveTimeout         ResponseCode = 12
	MessageIllegal            ResponseCode = 13
	ServiceNotAvailable       ResponseCode = 14
	VersionNotSupported       ResponseCode = 15
	NoPermission              ResponseCode = 16
	TopicNotExist             ResponseCode = 17
	PullNotFound              ResponseCode = 19
	PullRetryImmediately      ResponseCode = 20
	PullOffsetMoved           ResponseCode = 21
	QueryNotFound             ResponseCode = 22
	SubscriptionParseFailed   ResponseCode = 23
	SubscriptionNotExist      ResponseCode = 24
	SubscriptionNotLatest     ResponseCode = 25
	SubscriptionGroupNotExist ResponseCode = 26
	FilterDataNotExist        ResponseCode = 27
	FilterDataNotLatest       ResponseCode = 28
	InvalidParameter          ResponseCode = 29
	ConsumerNotOnline         ResponseCode = 206
	ConsumeMsgTimeout         ResponseCode = 207
	NoMessage                 ResponseCode = 208
	PollingFull               ResponseCode = 209
	PollingTimeout            ResponseCode = 210
	BroadcastConsumption      ResponseCode = 213
	FlowControl               ResponseCode = 215
	NotLeaderForQueue         ResponseCode = 501
	IllegalOperation          ResponseCode = 604
	GoAway                    ResponseCode = 1500
)

// String returns the code's name, or its number where it has none.
func (c RequestCode) String() string {
	switch c {
	case SendMessage:
		return "SendMessage"
	case PullMessage:
		return "PullMessage"
	case QueryMessage:
		return "QueryMessage"
	case QueryBrokerOffset:
		return "QueryBrokerOffset"
	case QueryConsumerOffset:
		return "QueryConsumerOffset"
	case UpdateConsumerOffset:
		return "UpdateConsumerOffset"
	case UpdateAndCreateTopic:
		return "UpdateAndCreateTopic"
	case UpdateAndCreateTopicList:
		return "UpdateAndCreateTopicList"
	case GetAllTopicConfig:
		return "GetAllTopicConfig"
	case UpdateBrokerConfig:
		return "UpdateBrokerConfig"
	case GetBrokerConfig:
		return "GetBrokerConfig"
	case GetBrokerRuntimeInfo:
		return "GetBrokerRuntimeInfo"
	case SearchOffsetByTimestamp:
		return "SearchOffsetByTimestamp"
	case GetMaxOffset:
		return "GetMaxOffset"
	case GetMinOffset:
		return "GetMinOffset"
	case GetEarliestMsgStoretime:
		return "GetEarliestMsgStoretime"
	case ViewMessageByID:
		return "ViewMessageByID"
	case HeartBeat:
		return "HeartBeat"
	case UnregisterClient:
		return "UnregisterClient"
	case ConsumerSendMsgBack:
		return "ConsumerSendMsgBack"
	case EndTransaction:
		return "EndTransaction"
	case GetConsumerListByGroup:
		return "GetConsumerListByGroup"
	case CheckTransactionState:
		return "CheckTransactionState"
	case NotifyConsumerIdsChanged:
		return "NotifyConsumerIdsChanged"
	case LockBatchMQ:
		return "LockBatchMQ"
	case UnlockBatchMQ:
		return "UnlockBatchMQ"
	case GetAllConsumerOffset:
		return "GetAllConsumerOffset"
	case GetAllDelayOffset:
		return "GetAllDelayOffset"
	case CheckClientConfig:
		return "CheckClientConfig"
	case GetTimerCheckPoint:
		return "GetTimerCheckPoint"
	case GetTimerMetrics:
		return "GetTimerMetrics"
	case PutKVConfig:
		return "PutKVConfig"
	case GetKVConfig:
		return "GetKVConfig"
	case DeleteKVConfig:
		return "DeleteKVConfig"
	case RegisterBroker:
		return "RegisterBroker"
	case UnregisterBroker:
		return "UnregisterBroker"
	case GetRouteInfoByTopic:
		return "GetRouteInfoByTopic"
	case GetBrokerClusterInfo:
		return "GetBrokerClusterInfo"
	case UpdateAndCreateSubscriptionGroup:
		return "UpdateAndCreateSubscriptionGroup"
	case GetAllSubscriptionGroupConfig:
		return "GetAllSubscriptionGroupConfig"
	case GetTopicStatsInfo:
		return "GetTopicStatsInfo"
	case GetConsumerConnectionList:
		return "GetConsumerConnectionList"
	case GetProducerConnectionList:
		return "GetProducerConnectionList"
	case WipeWritePermOfBroker:
		return "WipeWritePermOfBroker"
	case GetAllTopicListFromNameserver:
		return "GetAllTopicListFromNameserver"
	case DeleteSubscriptionGroup:
		return "DeleteSubscriptionGroup"
	case GetConsumeStats:
		return "GetConsumeStats"
	case DeleteTopicInBroker:
		return "DeleteTopicInBroker"
	case DeleteTopicInNamesrv:
		return "DeleteTopicInNamesrv"
	case RegisterTopicInNamesrv:
		return "RegisterTopicInNamesrv"
	case GetKVListByNamespace:
		return "GetKVListByNamespace"
	case ResetConsumerClientOffset:
		return "ResetConsumerClientOffset"
	case GetConsumerStatusFromClient:
		return "GetConsumerStatusFromClient"
	case InvokeBrokerToResetOffset:
		return "InvokeBrokerToResetOffset"
	case InvokeBrokerToGetConsumerStatus:
		return "InvokeBrokerToGetConsumerStatus"
	case GetTopicsByCluster:
		return "GetTopicsByCluster"
	case UpdateAndCreateSubscriptionGroupList:
		return "UpdateAndCreateSubscriptionGroupList"
	case QueryTopicConsumeByWho:
		return "QueryTopicConsumeByWho"
	case QueryConsumeTimeSpan:
		return "QueryConsumeTimeSpan"
	case GetSystemTopicListFromNS:
		return "GetSystemTopicListFromNS"
	case GetSystemTopicListFromBroker:
		return "GetSystemTopicListFromBroker"
	case CleanExpiredConsumeQueue:
		return "CleanExpiredConsumeQueue"
	case GetConsumerRunningInfo:
		return "GetConsumerRunningInfo"
	case QueryCorrectionOffset:
		return "QueryCorrectionOffset"
	case ConsumeMessageDirectly:
		return "ConsumeMessageDirectly"
	case SendMessageV2:
		return "SendMessageV2"
	case GetUnitTopicList:
		return "GetUnitTopicList"
	case GetHasUnitSubTopicList:
		return "GetHasUnitSubTopicList"
	case GetHasUnitSubUnUnitTopicList:
		return "GetHasUnitSubUnUnitTopicList"
	case CloneGroupOffset:
		return "CloneGroupOffset"
	case ViewBrokerStatsData:
		return "ViewBrokerStatsData"
	case CleanUnusedTopic:
		return "CleanUnusedTopic"
	case GetBrokerConsumeStats:
		return "GetBrokerConsumeStats"
	case UpdateNamesrvConfig:
		return "UpdateNamesrvConfig"
	case GetNamesrvConfig:
		return "GetNamesrvConfig"
	case SendBatchMessage:
		return "SendBatchMessage"
	case QueryConsumeQueue:
		return "QueryConsumeQueue"
	case QueryDataVersion:
		return "QueryDataVersion"
	case ResumeCheckHalfMessage:
		return "ResumeCheckHalfMessage"
	case SendReplyMessage:
		return "SendReplyMessage"
	case SendReplyMessageV2:
		return "SendReplyMessageV2"
	case PushReplyMessageToClient:
		return "PushReplyMessageToClient"
	case AddWritePermOfBroker:
		return "AddWritePermOfBroker"
	case GetAllProducerInfo:
		return "GetAllProducerInfo"
	case DeleteExpiredCommitLog:
		return "DeleteExpiredCommitLog"
	case QueryTopicsByConsumer:
		return "QueryTopicsByConsumer"
	case QuerySubscriptionByConsumer:
		return "QuerySubscriptionByConsumer"
	case GetTopicConfig:
		return "GetTopicConfig"
	case GetSubscriptionGroupConfig:
		return "GetSubscriptionGroupConfig"
	case UpdateAndGetGroupForbidden:
		return "UpdateAndGetGroupForbidden"
	case CheckRocksDBCQWriteProgress:
		return "CheckRocksDBCQWriteProgress"
	case ExportRocksDBConfigToJSON:
		return "ExportRocksDBConfigToJSON"
	case LitePullMessage:
		return "LitePullMessage"
	case RecallMessage:
		return "RecallMessage"
	case QueryAssignment:
		return "QueryAssignment"
	case SetMessageRequestMode:
		return "SetMessageRequestMode"
	case GetAllMessageRequestMode:
		return "GetAllMessageRequestMode"
	case UpdateAndCreateStaticTopic:
		return "UpdateAndCreateStaticTopic"
	case GetBrokerMemberGroup:
		return "GetBrokerMemberGroup"
	case AddBroker:
		return "AddBroker"
	case RemoveBroker:
		return "RemoveBroker"
	case BrokerHeartbeat:
		return "BrokerHeartbeat"
	case NotifyMinBrokerIDChange:
		return "NotifyMinBrokerIDChange"
	case ExchangeBrokerHAInfo:
		return "ExchangeBrokerHAInfo"
	case GetBrokerHAStatus:
		return "GetBrokerHAStatus"
	case ResetMasterFlushOffset:
		return "ResetMasterFlushOffset"
	case GetBrokerEpochCache:
		return "GetBrokerEpochCache"
	case PopMessage:
		return "PopMessage"
	case AckMessage:
		return "AckMessage"
	case PeekMessage:
		return "PeekMessage"
	case ChangeMessageInvisibleTime:
		return "ChangeMessageInvisibleTime"
	case Notification:
		return "Notification"
	case PollingInfo:
		return "PollingInfo"
	case PopRollback:
		return "PopRollback"
	case BatchAckMessage:
		return "BatchAckMessage"
	}
	return strconv.Itoa(int(c))
}

// String returns the code's name, or its number where it has none.
func (c ResponseCode) String() string {
	switch c {
	case Success:
		return "Success"
	case SystemError:
		return "SystemError"
	case SystemBusy:
		return "SystemBusy"
	case RequestCodeNotSupported:
		return "RequestCodeNotSupported"
	case TransactionFailed:
		return "TransactionFailed"
	case FlushDiskTimeout:
		return "FlushDiskTimeout"
	case SlaveNotAvailable:
		return "SlaveNotAvailable"
	case FlushSlaveTimeout:
		return "FlushSlaveTimeout"
	case MessageIllegal:
		return "MessageIllegal"
	case ServiceNotAvailable:
		return "ServiceNotAvailable"
	case VersionNotSupported:
		return "VersionNotSupported"
	case NoPermission:
		return "NoPermission"
	case TopicNotExist:
		return "TopicNotExist"
	case PullNotFound:
		return "PullNotFound"
	case PullRetryImmediately:
		return "PullRetryImmediately"
	case PullOffsetMoved:
		return "PullOffsetMoved"
	case QueryNotFound:
		return "QueryNotFound"
	case SubscriptionParseFailed:
		return "SubscriptionParseFailed"
	case SubscriptionNotExist:
		return "SubscriptionNotExist"
	case SubscriptionNotLatest:
		return "SubscriptionNotLatest"
	case SubscriptionGroupNotExist:
		return "SubscriptionGroupNotExist"
	case FilterDataNotExist:
		return "FilterDataNotExist"
	case FilterDataNotLatest:
		return "FilterDataNotLatest"
	case InvalidParameter:
		return "InvalidParameter"
	case ConsumerNotOnline:
		return "ConsumerNotOnline"
	case ConsumeMsgTimeout:
		return "ConsumeMsgTimeout"
	case NoMessage:
		return "NoMessage"
	case PollingFull:
		return "PollingFull"
	case PollingTimeout:
		return "PollingTimeout"
	case BroadcastConsumption:
		return "BroadcastConsumption"
	case FlowControl:
		return "FlowControl"
	case NotLeaderForQueue:
		return "NotLeaderForQueue"
	case IllegalOperation:
		return "IllegalOperation"
	case GoAway:
		return "GoAway"
	}
	return strconv.Itoa(int(c))
}

// Version numbers of the header field version (Java's MQVersion ordinals).
const (
	Version        = 479 // what we answer: 5.3.3. Clients refuse SQL92 pulls to brokers below 232.
	VersionV3_0_11 = 37  // from here on REGISTER_BROKER carries a RegisterBrokerBody
	VersionV3_1_8  = 62  // from here on a client answers relayed admin requests
	VersionV3_4_9  = 121 // from here on the header maxReconsumeTimes counts
	VersionV4_9_4  = 401 // from here on route answers are strict JSON
	VersionV5_0_0  = 413 // from here on a compressed RegisterBrokerBody has a mapping section
)
