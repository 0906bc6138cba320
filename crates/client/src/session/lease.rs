//! Keeping the lease, and heeding what the mgr says about it (RFC 8881 §8.3, §18.46.3).

use super::{Shared, WeakShared};
use crate::compound::Compound;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::Instant;
use wire::nfs4::*;

/// Renews the lease for as long as the session is in use: a SEQUENCE whenever a third of the lease passed without one.
pub(super) async fn keep(session: WeakShared, lease: Duration) {
    let third = lease / 3;
    loop {
        let due = {
            let Some(shared) = session.upgrade() else { return };
            *shared.last_used.lock().unwrap_or_else(PoisonError::into_inner) + third
        };
        if Instant::now() < due {
            tokio::time::sleep_until(due).await;
            continue;
        }
        let Some(shared) = session.upgrade() else { return };
        if let Err(error) = shared.call(Compound::new("renewing the lease")).await {
            tracing::warn!("{error}");
        }
        // Failures must not become a busy loop.
        *shared.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Shared {
    /// Acts on the status flags of a SEQUENCE.
    pub(super) fn heed(&self, flags: u32) {
        if flags & (SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION) != 0 {
            // The next call dials again, and that binds a connection that callbacks can come over.
            if let Ok(link) = self.link.try_lock() {
                link.hang_up();
            }
        }
        let revoked = SEQ4_STATUS_RECALLABLE_STATE_REVOKED
            | SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED
            | SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED
            | SEQ4_STATUS_ADMIN_STATE_REVOKED;
        if flags & revoked != 0 {
            for inode in self.inodes.all() {
                tokio::spawn(async move { inode.lose_layout().await });
            }
        }
    }
}
