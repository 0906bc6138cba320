//! Directory delegations (delegations of the names in a directory): what Weir's client and server agree on beyond RFC
//! 8881 §10.9.

/// A bit of `gdda_notification_types` (GET_DIR_DELEGATION) that RFC 8881 §20.4 leaves unused. Weir's client sets this
/// bit to declare that it expects Weir's rule: its own changes of a directory neither end its delegation of the
/// directory nor cause notifications.
pub const OWN_CHANGES: u32 = 127;

/// How long a client may rely on a directory delegation after it sent the last request to which the server replied. If
/// another client changes the directory when this time has passed, the server revokes the delegation at once, without
/// waiting for the end of the lease. The client can request the delegation again.
pub const RELIED_ON: std::time::Duration = std::time::Duration::from_secs(5);
