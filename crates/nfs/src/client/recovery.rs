//! Recovery decisions of the client: what it does after lost state, a failed EXCHANGE_ID or CREATE_SESSION, or a
//! SEQUENCE status flag.

use crate::client::session::Identity;
use std::time::Duration;
use wire::nfs4::*;

/// A recovery action that a status flag of a SEQUENCE reply requires (RFC 8881 §18.46.3). If several actions are
/// required, the client carries them out in the order of these variants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Task {
    /// Wait until the session has no request in flight, then replace the session by a new session.
    ReplaceSession,
    /// Bind a connection to the backchannel of the session (BIND_CONN_TO_SESSION).
    BindBackchannel,
    /// The server revoked all state of the client: start again with EXCHANGE_ID.
    StartOver,
    /// The server has restarted: reclaim opens and locks, then send RECLAIM_COMPLETE.
    Reclaim,
    /// The server revoked some state of the client: send TEST_STATEID for every stateid, and FREE_STATEID for every
    /// revoked stateid.
    TestStateids,
    /// The server revoked layouts: discard all layouts of this client.
    DropLayouts,
    /// Device addresses have changed: send GETDEVICEINFO again for every device in use.
    RefreshDevices,
}

/// Returns the recovery actions that the status flags of a SEQUENCE reply require. Most replies have no flag set.
pub fn tasks(flags: u32) -> Vec<Task> {
    let table = [
        (SEQ4_STATUS_BACKCHANNEL_FAULT, Task::ReplaceSession),
        (SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION, Task::BindBackchannel),
        (SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED, Task::StartOver),
        (SEQ4_STATUS_RESTART_RECLAIM_NEEDED, Task::Reclaim),
        (SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED | SEQ4_STATUS_ADMIN_STATE_REVOKED, Task::TestStateids),
        (SEQ4_STATUS_RECALLABLE_STATE_REVOKED, Task::DropLayouts),
        (SEQ4_STATUS_DEVID_CHANGED | SEQ4_STATUS_DEVID_DELETED, Task::RefreshDevices),
    ];
    table.into_iter().filter(|(bits, _)| flags & bits != 0).map(|(_, task)| task).collect()
}

/// Which state of the client the server still has, according to a repeated EXCHANGE_ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Continuity {
    /// The server still has the client record with opens, locks and layouts. Only the session is lost.
    Kept,
    /// The server that replies has the same server scope as before, but has lost the client's state, for example by a
    /// restart. The client must reclaim its state within the grace period.
    Lost,
    /// A server with another server scope replies, so the client's filehandles and stateids are invalid.
    Elsewhere,
}

/// Compares the reply to the first EXCHANGE_ID with the reply to the EXCHANGE_ID that the client sent after it had lost
/// its session (§2.10.4, §8.4.2).
pub fn continuity(before: &Identity, after: &Identity) -> Continuity {
    if before.scope != after.scope {
        Continuity::Elsewhere
    } else if after.confirmed && after.clientid == before.clientid {
        Continuity::Kept
    } else {
        Continuity::Lost
    }
}

/// What the client does after a failed EXCHANGE_ID or CREATE_SESSION.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Send the failed request again after a pause.
    Wait,
    /// Send EXCHANGE_ID again, then CREATE_SESSION.
    StartOver,
    /// Report the failure to the caller, and do not send the request again.
    GiveUp,
}

/// Returns what the client does after a failed EXCHANGE_ID. CLID_INUSE is final: another principal uses the same client
/// owner, until its lease expires.
pub fn exchange_id_failed(status: nfsstat4) -> Next {
    match status {
        NFS4ERR_DELAY | NFS4ERR_SERVERFAULT => Next::Wait,
        _ => Next::GiveUp,
    }
}

/// Returns what the client does after a failed CREATE_SESSION. The client id, or the sequence number of the
/// CREATE_SESSION, may be out of date.
pub fn create_session_failed(status: nfsstat4) -> Next {
    match status {
        NFS4ERR_DELAY => Next::Wait,
        NFS4ERR_STALE_CLIENTID | NFS4ERR_SEQ_MISORDERED => Next::StartOver,
        _ => Next::GiveUp,
    }
}

/// What the client does with a request that was in flight when its session was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redo {
    /// Send the request in the new session.
    Send,
    /// The server may have executed the request, which is not idempotent. Report the unknown outcome to the caller.
    Unknown,
}

/// Returns what the client does with a request that was in flight when its session was lost. `answered` means that
/// the server refused the first transmission with BADSESSION, so that the server cannot have executed the request.
/// `once` means that the request is not idempotent.
pub fn after_session_lost(answered: bool, once: bool) -> Redo {
    if answered || !once { Redo::Send } else { Redo::Unknown }
}

/// Returns the pause before retry number `attempt`, counted from 0: 20 ms, doubled for each retry, at most 5 s.
pub fn pause(attempt: u32) -> Duration {
    Duration::from_millis(20 << attempt.min(8)).min(Duration::from_secs(5))
}
