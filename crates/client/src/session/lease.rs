//! Lease renewal, and the reaction to the status flags of SEQUENCE (RFC 8881 §8.3, §18.46.3).

use super::{Shared, lock, now};
use crate::compound::Compound;
use nfs::client::recovery::{Task, tasks};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// The minimum and maximum time between two checks of whether the client must renew the lease.
const LOOK: std::ops::RangeInclusive<Duration> = Duration::from_millis(200)..=Duration::from_secs(60);

/// The background task that renews the lease. The task ends when the session is dropped.
pub(super) async fn keep(session: Weak<Shared>) {
    loop {
        let left = {
            let Some(shared) = session.upgrade() else { return };
            let due = lock(&shared.table).session.as_ref().map(|session| session.renewal_due());
            let left = due.map_or(*LOOK.end(), |due| due.since(now()));
            if left.is_zero()
                && let Err(error) = shared.call(Compound::new("renewing the lease")).await
            {
                tracing::warn!("{error}");
            }
            left
        };
        tokio::time::sleep_until(Instant::now() + left.clamp(*LOOK.start(), *LOOK.end())).await;
    }
}

impl Shared {
    /// Starts a task for each status flag in the reply to SEQUENCE that needs a reaction.
    pub(super) fn heed(self: &Arc<Self>, epoch: u64, flags: u32) {
        for task in tasks(flags) {
            let shared = self.clone();
            net::task::spawn(async move {
                match task {
                    Task::ReplaceSession => shared.forget_session(epoch).await,
                    Task::BindBackchannel => shared.hang_up().await,
                    Task::StartOver | Task::Reclaim => shared.forget_state(epoch).await,
                    Task::TestStateids => shared.test_stateids(false).await,
                    Task::DropLayouts => shared.test_stateids(true).await,
                    // A changed device address needs no reaction: the client requests a device's address again whenever
                    // a connection to the device fails.
                    Task::RefreshDevices => {}
                }
            });
        }
    }
}
