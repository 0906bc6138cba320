//! Client of the admin RPC program of the mgr. Its calls carry the RPC credentials of the user who runs the command.

use crate::failure::{Exit, Failure, UNREACHABLE};
use crate::session::Connect;
use client::Target;
use net::Address;
use net::rpc::{Connection, Limits, NoService};
use std::sync::Arc;
use std::time::Duration;
use types::FileKind;
use wire::admin::{LOCAL_SOCKET_TO_ADMINISTER, LocalSocketArgs, LocalSocketReply, PROGRAM, VERSION};
use wire::rpc::{Auth, AuthSys};
use xdr::{Segments, Xdr};

/// A connection to the admin RPC program of an mgr.
pub struct Admin {
    address: Address,
    connection: Connection,
    timeout: Duration,
    auth: Auth,
}

impl Admin {
    /// Connects to the mgr at `address`. `timeout` limits the connection attempt and the wait for each later reply.
    pub async fn connect(address: Address, timeout: Duration) -> Result<Admin, Failure> {
        let connection = connect(&address, timeout).await.map_err(unreachable)?;
        Ok(Admin { address, connection, timeout, auth: auth() })
    }

    /// Returns this connection with `timeout` as the time limit for each later reply.
    pub fn patient(self, timeout: Duration) -> Admin {
        Admin { timeout, ..self }
    }

    /// Calls a procedure of the admin program and decodes the reply.
    pub async fn ask<R: Xdr>(&self, procedure: u32, args: &impl Xdr) -> Result<R, Failure> {
        self.send(procedure, args.to_bytes().into()).await
    }

    /// Calls a procedure of the admin program that takes no arguments, and decodes the reply.
    pub async fn ask_for<R: Xdr>(&self, procedure: u32) -> Result<R, Failure> {
        self.send(procedure, Segments::default()).await
    }

    async fn send<R: Xdr>(&self, procedure: u32, args: Segments) -> Result<R, Failure> {
        tracing::debug!(mgr = %self.address, procedure, "request");
        let call = self.connection.call(PROGRAM, VERSION, procedure, &self.auth, args, self.timeout);
        let mut reply = call.await.map_err(|e| match e {
            net::Error::Refused(refusal) => no_mgr(&self.address, refusal),
            other => unreachable(other),
        })?;
        R::decode(&mut reply.body).map_err(|e| Failure::new(format!("{}: malformed reply: {e}", self.address)))
    }
}

/// Returns the address of the mgr that serves `target`.
pub fn mgr_of(target: &Target) -> Address {
    Address::Tcp { host: target.host().to_owned(), port: target.port() }
}

/// Fails unless the directory in the URL `target` exists. Administration commands accept the URL of any directory of
/// a file system, because `WEIR_URL` may contain a directory.
pub async fn must_exist(connect: &Connect, target: &Target) -> Result<(), Failure> {
    if target.path().is_empty() {
        // Do not look up the root directory: an administrator may check a file system even if no export lets this
        // machine mount its root directory.
        return Ok(());
    }
    let mut mounts = crate::session::Mounts::new(connect)?;
    let found = mounts.get(target).await?.resolve(target.path(), true).await;
    mounts.disconnect().await;
    match found {
        Ok((_, attrs)) if attrs.kind == FileKind::Directory => Ok(()),
        Ok(_) => Err(Failure::new(format!("{target}: not a directory"))),
        Err(error) => Err(Failure::from(error).about(target)),
    }
}

/// Returns the RPC credentials of the user of this process.
pub fn auth() -> Auth {
    Auth::Sys(AuthSys::new(&client::Options::default().cred, "weir"))
}

/// Returns the failure for an RPC that the server at `address` refused. The server is not an mgr, or is an mgr of
/// another version of Weir.
pub fn no_mgr(address: &Address, refusal: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{address} is not an mgr of this version of Weir: {refusal}"))
}

/// Connects to an mgr. If the mgr runs on this machine, uses the mgr's Unix socket, because the kernel tells the mgr
/// which user calls over this socket.
pub async fn connect(address: &Address, timeout: Duration) -> Result<Connection, net::Error> {
    let connection = reach(address, timeout).await?;
    let connection = nearer(&connection, timeout).await.unwrap_or(connection);
    tracing::info!(mgr = %address, way = %connection.peer(), "connected to an mgr");
    Ok(connection)
}

async fn reach(address: &Address, timeout: Duration) -> Result<Connection, net::Error> {
    let limits = Limits { reserved_port: true, ..Limits::default() };
    Connection::connect(address, Arc::new(NoService), limits, net::Counters::default(), timeout).await
}

async fn nearer(connection: &Connection, timeout: Duration) -> Option<Connection> {
    let told = local_socket(connection, connection.local()?.to_string(), timeout).await?;
    let local = told.local?;
    let boot_id = local.host.trim().parse::<types::Fsid>().ok()?;
    if net::address::boot_id() != Some(boot_id.0) {
        return None;
    }
    let address = Address::parse(&local.path, None).ok().filter(|address| matches!(address, Address::Unix(_)))?;
    let (service, limits, counters) = (Arc::new(NoService), Limits::default(), net::Counters::default());
    // A process other than the mgr may listen at the path of the mgr's Unix socket and relay the mgr's messages. So
    // connect only if the socket belongs to root or to the user of this process, which `connect_sent` checks.
    let nearer = Connection::connect_sent(&address, service, limits, counters, timeout).await;
    let nearer =
        nearer.inspect_err(|e| tracing::debug!(error = %e, "cannot use the mgr's Unix socket: using TCP")).ok()?;
    let run = local_socket(&nearer, String::new(), timeout).await?.run;
    (run == told.run).then_some(nearer)
}

async fn local_socket(connection: &Connection, from: String, timeout: Duration) -> Option<LocalSocketReply> {
    let body = LocalSocketArgs { from }.to_bytes().into();
    let sent = connection.call(PROGRAM, VERSION, LOCAL_SOCKET_TO_ADMINISTER, &auth(), body, timeout).await;
    LocalSocketReply::decode(&mut sent.ok()?.body).ok()
}

fn unreachable(error: net::Error) -> Failure {
    Failure { code: Exit::Unreachable, ..Failure::new(error) }.next(UNREACHABLE)
}
