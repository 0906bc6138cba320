//! The backchannel of the mgr: the connections of clients, by connection number, and CB_COMPOUND calls over them (RFC
//! 8881 §2.10.3.1).

use bytes::Bytes;
use net::rpc::Connection;
use nfs::server::{CallbackPath, Callbacks, Lost};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::nfs4::callback_sec_parms4;
use wire::rpc::{Auth, AuthSys};
use xdr::Segments;

/// Time limit for the reply of a client to a callback of the mgr.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(10);
/// Version of the callback program, and the number of its procedure CB_COMPOUND (RFC 8881 §20.2).
const CB_VERSION: u32 = 1;
const CB_COMPOUND: u32 = 1;

/// The open connections of clients to the mgr, by connection number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backchannel {
    connections: Arc<Mutex<HashMap<u64, Connection>>>,
}

impl Backchannel {
    /// Records the connection over which a request of a client arrived.
    pub(crate) fn seen(&self, connection: &Connection) {
        let mut map = self.map();
        map.entry(connection.id()).or_insert_with(|| connection.clone());
        // If the connection closed before this function added the entry, `Self::lost` has already run and found no
        // entry. So remove the entry here.
        if connection.is_closed() {
            map.remove(&connection.id());
        }
    }

    /// Removes a connection that has been closed or broken.
    pub(crate) fn lost(&self, connection: u64) {
        self.map().remove(&connection);
    }

    fn map(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn auth(security: Option<&callback_sec_parms4>) -> Auth {
    match security {
        Some(callback_sec_parms4::AUTH_SYS(sys)) => Auth::Sys(AuthSys {
            stamp: sys.stamp,
            machine: sys.machinename.clone(),
            uid: sys.uid,
            gid: sys.gid,
            gids: sys.gids.clone(),
        }),
        _ => Auth::None,
    }
}

impl Callbacks for Backchannel {
    async fn call(&self, path: CallbackPath, arguments: Segments) -> Result<Bytes, Lost> {
        let connection = self.map().get(&path.connection.0).cloned().ok_or(Lost)?;
        let auth = auth(path.security.as_ref());
        let reply = connection.call(path.program, CB_VERSION, CB_COMPOUND, &auth, arguments, CALLBACK_TIMEOUT).await;
        reply.map(|reply| reply.body.rest()).map_err(|e| {
            tracing::info!(peer = %connection.peer(), "a callback to a client failed: {e}");
            Lost
        })
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}
