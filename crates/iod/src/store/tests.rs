//! The store without sockets.
