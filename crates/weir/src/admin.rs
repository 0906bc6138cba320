//! Asking an mgr by the admin program, as the user who runs the command.

use crate::failure::{Exit, Failure, UNREACHABLE};
use net::Address;
use net::rpc::{Connection, Limits, NoService};
use std::sync::Arc;
use std::time::Duration;
use types::Cred;
use wire::admin::{PROGRAM, VERSION};
use wire::rpc::{Auth, AuthSys};
use xdr::Xdr;

/// A connection to an mgr.
pub struct Admin {
    address: Address,
    connection: Connection,
    timeout: Duration,
    auth: Auth,
}

impl Admin {
    /// Connects to the mgr at `address`; it and every answer may take `timeout`.
    pub async fn connect(address: Address, timeout: Duration) -> Result<Admin, Failure> {
        let limits = Limits::default();
        let connection = Connection::connect(&address, Arc::new(NoService), limits, net::Counters::default(), timeout);
        let connection = connection.await.map_err(unreachable)?;
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let auth = Auth::Sys(AuthSys::new(&Cred { uid, gid, groups: Vec::new() }, "weir"));
        Ok(Admin { address, connection, timeout, auth })
    }

    /// The same, with so much time for every answer from now on.
    pub fn patient(self, timeout: Duration) -> Admin {
        Admin { timeout, ..self }
    }

    /// Calls a procedure.
    pub async fn ask<R: Xdr>(&self, procedure: u32, args: &impl Xdr) -> Result<R, Failure> {
        let call = self.connection.call(PROGRAM, VERSION, procedure, &self.auth, args.to_bytes().into(), self.timeout);
        let mut reply = call.await.map_err(|e| match e {
            net::Error::Refused(refusal) => {
                Failure::new(format!("{} is no mgr of this version of Weir: {refusal}", self.address))
            }
            other => unreachable(other),
        })?;
        R::decode(&mut reply.body).map_err(|e| Failure::new(format!("{}: the answer is malformed: {e}", self.address)))
    }
}

fn unreachable(error: net::Error) -> Failure {
    Failure { code: Exit::Unreachable, ..Failure::new(error) }.next(UNREACHABLE)
}
