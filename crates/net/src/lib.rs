//! Transports and calls in flight: record-marked ONC RPC over TCP and Unix sockets.
