//! Delegations of the names in a directory: the private protocol of Weir's client and server beyond RFC 8881.

/// A bit in the notification mask of GET_DIR_DELEGATION (`gdda_notification_types`) that RFC 8881 §20.4 does not use.
/// It says that the client knows that its own changes of the directory neither end the delegation nor cause
/// notifications.
pub const OWN_CHANGES: u32 = 127;

/// How long a client may rely on such a delegation after it has sent a request that was answered. The server may revoke
/// the delegation of a client that is silent for longer when another client needs it, without waiting for the lease.
/// The client loses nothing, as it can ask the server again.
pub const RELIED_ON: std::time::Duration = std::time::Duration::from_secs(5);
