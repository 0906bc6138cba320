//! Recovery decisions of the client: what to do when the server lost state, refuses a request, or sets a status flag.

use crate::client::session::Identity;
use std::time::Duration;
use wire::nfs4::*;

/// An action that a status flag of SEQUENCE asks for (RFC 8881 §18.46.3), in the order in which the client carries them
/// out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Task {
    /// Destroy the session and create another one when its requests are done.
    ReplaceSession,
    /// Bind a connection to the backchannel (BIND_CONN_TO_SESSION).
    BindBackchannel,
    /// All state is lost: start again with EXCHANGE_ID.
    StartOver,
    /// The server restarted: reclaim, then RECLAIM_COMPLETE.
    Reclaim,
    /// Some state is lost: send TEST_STATEID for all state held, and FREE_STATEID for state that is lost.
    TestStateids,
    /// The server revoked layouts: drop all of them.
    DropLayouts,
    /// Device addresses have changed: request those in use again.
    RefreshDevices,
}

/// Returns the actions that the flags of a SEQUENCE reply ask for; usually none.
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

/// What is left of the client's state at a server after another EXCHANGE_ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Continuity {
    /// The server still knows the client: only the session is gone; opens and layouts are unchanged.
    Kept,
    /// The server is the same (or its successor), but has lost the client's state: reclaim the state within the grace
    /// period.
    Lost,
    /// The server is another one, where the client's handles and stateids are invalid.
    Elsewhere,
}

/// Compares the answers to EXCHANGE_ID before and after a session was lost (§2.10.4, §8.4.2).
pub fn continuity(before: &Identity, after: &Identity) -> Continuity {
    if before.scope != after.scope {
        Continuity::Elsewhere
    } else if after.confirmed && after.clientid == before.clientid {
        Continuity::Kept
    } else {
        Continuity::Lost
    }
}

/// What to do after a failure of EXCHANGE_ID or CREATE_SESSION.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Send the same request again after a pause.
    Wait,
    /// Send EXCHANGE_ID again.
    StartOver,
    /// Give up.
    GiveUp,
}

/// Decides after a failure of EXCHANGE_ID. CLID_INUSE means that another principal owns the client's owner name until
/// its lease expires.
pub fn exchange_id_failed(status: nfsstat4) -> Next {
    match status {
        NFS4ERR_DELAY | NFS4ERR_SERVERFAULT => Next::Wait,
        _ => Next::GiveUp,
    }
}

/// Decides after a failure of CREATE_SESSION. The client id, or the client's sequence number, may be out of date.
pub fn create_session_failed(status: nfsstat4) -> Next {
    match status {
        NFS4ERR_DELAY => Next::Wait,
        NFS4ERR_STALE_CLIENTID | NFS4ERR_SEQ_MISORDERED => Next::StartOver,
        _ => Next::GiveUp,
    }
}

/// What to do with a request that was in flight when its session was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redo {
    /// Send it in the new session.
    Send,
    /// The server may have executed it, and executing it twice differs from once: report the unknown outcome to the
    /// caller.
    Unknown,
}

/// Decides on a request of a lost session. `answered` means that the server refused its first sending for lack of the
/// session, so that it cannot have executed it. `once` means that the request must not execute twice.
pub fn after_session_lost(answered: bool, once: bool) -> Redo {
    if answered || !once { Redo::Send } else { Redo::Unknown }
}

/// Returns the pause before try number `attempt` (0 is the first repetition): 20 ms, doubling up to 5 s.
pub fn pause(attempt: u32) -> Duration {
    Duration::from_millis(20 << attempt.min(8)).min(Duration::from_secs(5))
}
