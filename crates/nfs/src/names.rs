//! Delegations of the names in a directory: what client and server agree on beyond RFC 8881.

/// A number among the notifications that GET_DIR_DELEGATION asks for (`gdda_notification_types`), which RFC 8881 §20.4 does not use: the client knows
/// that what it changes in the directory itself neither ends the delegation nor is told to it.
pub const OWN_CHANGES: u32 = 127;

/// For so long after it has sent a request that was answered a client may rely on such a delegation. Whoever is not heard of for longer loses it to
/// others, who need not wait for a lease: it promises nothing that the client cannot ask for.
pub const RELIED_ON: std::time::Duration = std::time::Duration::from_secs(5);
