//! Making and keeping a session: connection, client id, session, what is reclaimed after the mgr restarted.

use super::{Answer, PAUSE, Shared, header};
use crate::compound::{Compound, nfs_error};
use crate::counters::add;
use crate::{Error, Options, Result};
use bytes::Bytes;
use net::rpc::{Connection, Limits};
use nfs::client::slots::Slots;
use std::time::Duration;
use tokio::time::Instant;
use types::limits::{COMPOUND_OPS_MAX, RECORD_MAX, REPLY_CACHED_MAX, SLOTS_MAX};
use wire::nfs4::compound::OpNumber;
use wire::nfs4::*;
use wire::rpc::{Auth, AuthSys};
use xdr::Xdr;

/// Room in a record for the RPC header around a COMPOUND.
const RPC_HEADER: u32 = 1024;
/// Largest callback request and reply.
const CALLBACK_MAX: u32 = 16 << 10;

/// What is there of a session.
#[derive(Default)]
pub(super) struct Link {
    connection: Option<Connection>,
    established: Option<Established>,
    /// The client id, and the number of its next CREATE_SESSION.
    client: Option<(clientid4, sequenceid4)>,
    epochs: u64,
    ever: bool,
}

/// A session that the mgr knows.
#[derive(Clone)]
pub(super) struct Established {
    pub(super) epoch: u64,
    pub(super) session: sessionid4,
}

/// The credential of all calls.
pub(super) fn auth(options: &Options) -> Auth {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Auth::Sys(AuthSys::new(&options.cred, &machine))
}

/// Who this client is: nobody else, not even an earlier run of the same program.
pub(super) fn owner() -> Result<client_owner4> {
    let mut random = [0u8; 24];
    getrandom::fill(&mut random).map_err(|e| Error::usage(format!("no random numbers: {e}")))?;
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut co_verifier = [0; 8];
    co_verifier.copy_from_slice(&random[16..]);
    let mut name = format!("weir {machine} {} ", std::process::id()).into_bytes();
    name.extend_from_slice(&random[..16]);
    Ok(client_owner4 { co_verifier, co_ownerid: Bytes::from(name) })
}

impl Shared {
    /// A connection and a session, made if they are not there; tried again for `patience`.
    pub(super) async fn ready(&self, patience: Duration) -> Result<(Connection, Established)> {
        let deadline = Instant::now() + patience;
        let mut pause = *PAUSE.start();
        let mut link = self.link.lock().await;
        loop {
            if let (Some(connection), Some(established)) = (&link.connection, &link.established)
                && !connection.is_closed()
            {
                return Ok((connection.clone(), established.clone()));
            }
            let error = match self.establish(&mut link).await {
                Ok(()) => continue,
                Err(error) if error.kind() == crate::ErrorKind::Connection => error,
                Err(error) if error.is(types::Status::Delay) => error,
                Err(error) => return Err(error),
            };
            if Instant::now() + pause > deadline {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(*PAUSE.end());
        }
    }

    /// The session of this epoch turned out to be gone.
    pub(super) async fn forget_session(&self, epoch: u64) {
        let mut link = self.link.lock().await;
        if link.established.as_ref().is_some_and(|e| e.epoch == epoch) {
            link.established = None;
        }
    }

    async fn establish(&self, link: &mut Link) -> Result<()> {
        let connection = match link.connection.take().filter(|c| !c.is_closed()) {
            Some(connection) => connection,
            None => self.dial(link).await?,
        };
        link.connection = Some(connection.clone());
        if let Some(established) = &link.established {
            if self.bind(&connection, established.session).await? {
                return Ok(());
            }
            link.established = None;
        }
        let (confirmed, clientid, sequence) = self.exchange_id(link, &connection).await?;
        let session = self.create_session(link, &connection, clientid, sequence).await?;
        link.epochs += 1;
        let established = Established { epoch: link.epochs, session };
        if !confirmed {
            self.reclaim(&connection, &established).await?;
        }
        link.established = Some(established);
        Ok(())
    }

    async fn dial(&self, link: &mut Link) -> Result<Connection> {
        let (net, limits) = (self.net.clone(), Limits::default());
        let connected =
            Connection::connect(&self.address, self.callbacks.clone(), limits, net, self.options.connect_timeout).await;
        let connection = connected.map_err(|e| {
            Error::connection(format!(
                "{e}; is the mgr running there? (`weir status` asks one, `weir up` starts a cluster)"
            ))
        })?;
        if link.ever {
            add(&self.tally.reconnects, 1);
        }
        link.ever = true;
        Ok(connection)
    }

    /// Sends a COMPOUND of one operation outside any session and gives its result.
    async fn lone<T: Xdr>(
        &self,
        connection: &Connection,
        number: nfs_opnum4,
        args: &impl Xdr,
        what: &str,
    ) -> Result<std::result::Result<T, nfsstat4>> {
        let mut compound = Compound::new(what);
        compound.op(number, args);
        let sent = self.exchange(connection, None, &compound).await;
        let reply = match sent {
            Ok(reply) => reply,
            Err(e @ (net::Error::Refused(_) | net::Error::Malformed(_))) => {
                return Err(Error::protocol(format!("{what}: {} does not speak NFSv4: {e}", self.address)));
            }
            Err(e) => {
                connection.close();
                return Err(Error::connection(format!("{what}: mgr {}: {e}", self.address)));
            }
        };
        let malformed = |e| Error::protocol(format!("{what}: the mgr sent a reply that makes no sense: {e}"));
        let (head, mut ops) = header(reply).map_err(malformed)?;
        if head.status == NFS4ERR_MINOR_VERS_MISMATCH {
            return Err(Error::protocol(format!("{what}: {} does not speak NFSv4.2", self.address)));
        }
        if ops.next_number().map_err(malformed)? != Some(number.number()) {
            return Ok(Err(head.status));
        }
        match nfsstat4::decode(ops.input()).map_err(malformed)? {
            NFS4_OK => ops.body().map(Ok).map_err(malformed),
            status => Ok(Err(status)),
        }
    }

    async fn exchange_id(&self, link: &mut Link, connection: &Connection) -> Result<(bool, clientid4, sequenceid4)> {
        let what = "introducing this client";
        let args = EXCHANGE_ID4args {
            eia_clientowner: self.owner.clone(),
            eia_flags: EXCHGID4_FLAG_USE_PNFS_MDS,
            eia_state_protect: state_protect4_a::SP4_NONE,
            eia_client_impl_id: Vec::new(),
        };
        let got: EXCHANGE_ID4resok =
            self.lone(connection, OP_EXCHANGE_ID, &args, what).await?.map_err(|status| nfs_error(status, what))?;
        let confirmed = got.eir_flags & EXCHGID4_FLAG_CONFIRMED_R != 0;
        // For a client that the mgr knows, the number is the one after our last CREATE_SESSION (RFC 8881 §18.36.4).
        let ours = link.client.filter(|(id, _)| confirmed && *id == got.eir_clientid);
        let sequence = ours.map_or(got.eir_sequenceid, |(_, next)| next);
        Ok((confirmed, got.eir_clientid, sequence))
    }

    async fn create_session(
        &self,
        link: &mut Link,
        connection: &Connection,
        clientid: clientid4,
        sequence: sequenceid4,
    ) -> Result<sessionid4> {
        let what = "making a session";
        let channel = |size: u32, cached: u32, ops: u32, slots: u32| channel_attrs4 {
            ca_headerpadsize: 0,
            ca_maxrequestsize: size,
            ca_maxresponsesize: size,
            ca_maxresponsesize_cached: cached,
            ca_maxoperations: ops,
            ca_maxrequests: slots,
            ca_rdma_ird: Vec::new(),
        };
        let args = CREATE_SESSION4args {
            csa_clientid: clientid,
            csa_sequence: sequence,
            csa_flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            csa_fore_chan_attrs: channel(RECORD_MAX as u32 - RPC_HEADER, REPLY_CACHED_MAX, COMPOUND_OPS_MAX, SLOTS_MAX),
            csa_back_chan_attrs: channel(CALLBACK_MAX, 0, 4, 8),
            csa_cb_program: NFS4_CALLBACK,
            csa_sec_parms: vec![callback_sec_parms4::AUTH_NONE],
        };
        let got: CREATE_SESSION4resok = match self.lone(connection, OP_CREATE_SESSION, &args, what).await? {
            Ok(got) => got,
            Err(status) => {
                link.client = None;
                // The mgr restarted in between, or thinks of another number: begin again.
                let again = matches!(status, NFS4ERR_STALE_CLIENTID | NFS4ERR_SEQ_MISORDERED | NFS4ERR_DELAY);
                let error = nfs_error(status, what);
                return Err(if again { Error::status(types::Status::Delay, what) } else { error });
            }
        };
        link.client = Some((clientid, sequence.wrapping_add(1)));
        let limit = got.csr_fore_chan_attrs.ca_maxrequests.clamp(1, SLOTS_MAX);
        self.callbacks.begin_session(got.csr_sessionid);
        let mut epoch = self.slots();
        (epoch.number, epoch.slots, epoch.limit) = (link.epochs + 1, Slots::new(limit), limit);
        drop(epoch);
        self.freed.notify_waiters();
        Ok(got.csr_sessionid)
    }

    /// Makes a new connection carry the session, callbacks included. False when the mgr does not know it any more.
    async fn bind(&self, connection: &Connection, session: sessionid4) -> Result<bool> {
        let what = "binding a connection";
        let args = BIND_CONN_TO_SESSION4args {
            bctsa_sessid: session,
            bctsa_dir: CDFC4_FORE_OR_BOTH,
            bctsa_use_conn_in_rdma_mode: false,
        };
        let got = self.lone::<BIND_CONN_TO_SESSION4resok>(connection, OP_BIND_CONN_TO_SESSION, &args, what).await?;
        match got {
            Ok(_) => Ok(true),
            Err(NFS4ERR_BADSESSION | NFS4ERR_DEADSESSION | NFS4ERR_STALE_CLIENTID) => Ok(false),
            Err(status) => Err(nfs_error(status, what)),
        }
    }

    /// A COMPOUND in a session that nobody else uses yet.
    async fn alone(
        &self,
        connection: &Connection,
        established: &Established,
        compound: &Compound,
    ) -> Result<Option<crate::compound::Results>> {
        let broken = |e| Error::connection(format!("{}: {e}", compound.what()));
        let ticket = self.slots().slots.acquire().ok_or_else(|| Error::protocol("a session without slots"))?;
        let answer = self.send(connection, established, ticket, compound).await.map_err(broken)?;
        self.slots().slots.done(ticket);
        match answer {
            Answer::Taken { ops, .. } => Ok(Some(crate::compound::Results::new(compound.what().to_owned(), ops))),
            Answer::Refused(_) => Ok(None),
        }
    }

    /// The mgr knows nothing of this client: opens what is open here again (RFC 8881 §8.4.2.1). Layouts are got anew when
    /// they are next needed.
    async fn reclaim(&self, connection: &Connection, established: &Established) -> Result<()> {
        for inode in self.inodes.all() {
            inode.lose_layout().await;
            for (key, write, read) in inode.opens() {
                for claim in [open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_NONE), open_claim4::CLAIM_FH] {
                    let mut compound = Compound::new("opening a file again").cached();
                    let access = if write { OPEN4_SHARE_ACCESS_WRITE } else { 0 }
                        | if read { OPEN4_SHARE_ACCESS_READ } else { 0 };
                    let args = OPEN4args {
                        seqid: 0,
                        share_access: access | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
                        share_deny: OPEN4_SHARE_DENY_NONE,
                        owner: open_owner4 { clientid: 0, owner: Bytes::copy_from_slice(&key.to_be_bytes()) },
                        openhow: openflag4::Default(OPEN4_NOCREATE),
                        claim,
                    };
                    compound.putfh(&inode.node.handle).op(OP_OPEN, &args);
                    let Some(mut results) = self.alone(connection, established, &compound).await? else { continue };
                    if results.done(&[OP_PUTFH]).is_err() {
                        break;
                    }
                    if let Ok(opened) = results.raw::<OPEN4resok>(OP_OPEN) {
                        inode.reopened(key, opened.stateid);
                        break;
                    }
                }
            }
        }
        let mut compound = Compound::new("ending recovery").cached();
        compound.op(OP_RECLAIM_COMPLETE, &RECLAIM_COMPLETE4args { rca_one_fs: false });
        let results = self.alone(connection, established, &compound).await?;
        match results.map(|mut results| results.raw::<wire::native::Nothing>(OP_RECLAIM_COMPLETE)) {
            Some(Ok(_)) | Some(Err(crate::compound::Failed::Nfs(NFS4ERR_COMPLETE_ALREADY))) => Ok(()),
            _ => Err(Error::connection("ending recovery: the mgr would not have it")),
        }
    }

    /// Ends session and client id.
    pub(super) async fn end(&self) -> Result<()> {
        let mut link = self.link.lock().await;
        let (Some(connection), Some(established)) = (link.connection.take(), link.established.take()) else {
            return Ok(());
        };
        let what = "ending the session";
        let args = DESTROY_SESSION4args { dsa_sessionid: established.session };
        // What the mgr does not destroy now, it will when the lease expires.
        let _ = self.lone::<wire::native::Nothing>(&connection, OP_DESTROY_SESSION, &args, what).await?;
        if let Some((clientid, _)) = link.client.take() {
            let args = DESTROY_CLIENTID4args { dca_clientid: clientid };
            let _ = self.lone::<wire::native::Nothing>(&connection, OP_DESTROY_CLIENTID, &args, what).await?;
        }
        connection.close();
        Ok(())
    }
}

impl Link {
    /// Drops the connection, so that the next call makes a new one.
    pub(super) fn hang_up(&self) {
        if let Some(connection) = &self.connection {
            connection.close();
        }
    }
}
