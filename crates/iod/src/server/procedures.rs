//! The procedures of the native data protocol, as methods of an iod's connection.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use log_index::LOGS_MAX;
use types::limits::{EXTENTS_MAX, PAYLOAD_MAX};
use types::{Generation, INDEX_STREAM, LOG_STREAMS, Status};
use wire::native::{
    Capability, ClaimArgs, ClaimReply, CommitReply, Crc32c, Failure, FenceArgs, HelloArgs, HelloReply, LengthsArgs,
    LengthsReply, ListArgs, ListReply, MGR_SESSION, Nothing, ObjectArgs, PieceKind, Procedure, Proof, ProveArgs,
    ProveReply, PunchArgs, REVISIONS, ReadArgs, ReadHead, ReserveArgs, Rights, ScrubArgs, ScrubReply, SeekArgs,
    SeekReply, SizeReply, StatsReply, Ticket, Transcript, TruncateArgs, TruncateReply, WriteExtent, WriteHead,
    WriteReply, WriteReportsArgs, WriteReportsReply, crc32c,
};
use wire::rpc::{AcceptStat, ReplyHeader};
use xdr::{Malformed, Reader, Xdr};

use super::connection::{Broken, Connection, SMALL};
use super::incarnations::{Membership, Replaced};
use super::socket::{Channel, SendFile};
use super::volume::Volume;
use crate::buffers::Buffer;
use crate::counters::Counters;
use crate::store::{HEAD_LEN, Object, Open, ReadPlan};

/// READ replies with at least this many bytes of data are sent by `sendfile`, unless the connection uses checksums.
const SENDFILE_MIN: u64 = 32 << 10;
/// Smallest limit on payloads, in bytes, that a client may request in HELLO.
const PAYLOAD_MIN: u32 = 512;
/// Longest time for which the iod delays its reply to the mgr's WRITE_REPORTS or LENGTHS call, while it has no write
/// report and no question about a file length for the mgr.
const REPORT_WAIT: Duration = Duration::from_secs(5);

/// The session that HELLO named, until PROVE opens it.
pub(super) struct PendingSession {
    volume: Arc<Volume>,
    ticket: Ticket,
    transcript: Transcript,
    checksums: bool,
    max_payload: u32,
}

/// The session that a peer has opened by PROVE.
pub(super) struct Session {
    number: u64,
    volume: Arc<Volume>,
    /// The entry of the connection in the list of its owner's connections.
    pub(super) membership: Membership,
    checksums: bool,
    max_payload: u32,
}

impl Session {
    /// Returns the session number from the ticket.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the volume of the file system that the ticket named.
    pub(super) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }
}

impl<C: Channel> Connection<C> {
    /// Executes a procedure other than WRITE, and sends the reply.
    pub(super) fn call(&mut self, xid: u32, procedure: Procedure, mut input: Reader) -> Result<(), Broken> {
        let session = self.session.is_some();
        tracing::debug!(session = self.session.as_ref().map_or(0, Session::number), ?procedure, "request");
        match procedure {
            Procedure::Null => self.refuse(xid, AcceptStat::Success),
            Procedure::Hello => self.with(xid, &mut input, Self::hello),
            Procedure::Prove => self.with(xid, &mut input, Self::prove),
            _ if !session => self.answer::<Nothing>(xid, Err(Status::NoSession.into())),
            Procedure::Read => match take(&mut input) {
                Ok(args) => self.read(xid, &args),
                Err(error) => self.garbage(xid, error),
            },
            // This function does not execute WRITE: `Connection::serve` executes it, because a part of its payload may
            // still be in the socket.
            Procedure::Write => self.refuse(xid, AcceptStat::ProcUnavail),
            Procedure::Commit => self.with(xid, &mut input, Self::commit),
            Procedure::Size => self.with(xid, &mut input, Self::size),
            Procedure::Truncate => self.with(xid, &mut input, Self::truncate),
            Procedure::Remove => self.with(xid, &mut input, Self::remove),
            Procedure::Punch => self.with(xid, &mut input, Self::punch),
            Procedure::Reserve => self.with(xid, &mut input, Self::reserve),
            Procedure::Pull => self.with(xid, &mut input, Self::pull),
            Procedure::Seek => self.with(xid, &mut input, Self::seek),
            Procedure::List => self.with(xid, &mut input, Self::list),
            Procedure::Stats => self.with(xid, &mut input, Self::stats),
            Procedure::Fence => self.with(xid, &mut input, Self::fence),
            Procedure::Scrub => self.with(xid, &mut input, Self::scrub),
            Procedure::WriteReports => self.with(xid, &mut input, Self::write_reports),
            Procedure::Lengths => self.with(xid, &mut input, Self::lengths),
            Procedure::Claim => self.with(xid, &mut input, Self::claim),
            Procedure::OpenLog => self.with(xid, &mut input, Self::open_log),
            Procedure::Register => self.with(xid, &mut input, Self::register),
            Procedure::Lookup => self.with(xid, &mut input, Self::lookup),
            Procedure::RemoveLogs => self.with(xid, &mut input, Self::remove_logs),
            Procedure::Lend => match take(&mut input) {
                Ok(args) => self.lend(xid, &args),
                Err(error) => self.garbage(xid, error),
            },
        }
    }

    /// Decodes the arguments of a call, executes `procedure`, and sends the reply.
    fn with<A: Xdr, R: Xdr>(
        &mut self,
        xid: u32,
        input: &mut Reader,
        procedure: impl FnOnce(&mut Self, A) -> Result<R, Failure>,
    ) -> Result<(), Broken> {
        match take(input) {
            Ok(args) => {
                let result = procedure(self, args);
                self.answer(xid, result)
            }
            Err(error) => self.garbage(xid, error),
        }
    }

    fn garbage(&mut self, xid: u32, error: Malformed) -> Result<(), Broken> {
        self.refuse(xid, AcceptStat::GarbageArgs)?;
        Err(error.into())
    }

    /// Executes HELLO: looks up the volume, negotiates the options of the session, and proves the identity of this iod.
    /// The peer stays unauthenticated until PROVE.
    fn hello(&mut self, args: HelloArgs) -> Result<HelloReply, Failure> {
        if self.session.is_some() || self.pending_session.is_some() {
            return Err(Failure { status: Status::Inval, detail: Some("HELLO was sent before".into()) });
        }
        let version = args.max_version.min(*REVISIONS.end());
        if version < args.min_version || version < *REVISIONS.start() {
            let (oldest, newest) = (args.min_version, args.max_version);
            let detail = format!(
                "this iod speaks revisions {} to {} of the native protocol, and you {oldest} to {newest}: use the same version of weir on all hosts",
                REVISIONS.start(),
                REVISIONS.end()
            );
            return Err(Failure { status: Status::BadVersion, detail: Some(detail) });
        }
        // A ticket for a file system that this iod does not serve cannot be valid, so return the same error as for a
        // forged ticket.
        let volume = self.daemon.volume(args.fsid).ok_or(Status::CapRefused)?.clone();
        let ticket = volume.judge.ticket(&args)?;
        if args.max_payload < PAYLOAD_MIN {
            let detail = format!("payloads of less than {PAYLOAD_MIN} bytes");
            return Err(Failure { status: Status::Inval, detail: Some(detail) });
        }
        let (max_payload, mut nonce) = (args.max_payload.min(PAYLOAD_MAX as u32), [0; 32]);
        getrandom::fill(&mut nonce)
            .map_err(|e| Failure { status: Status::ServerFault, detail: Some(format!("no random numbers: {e}")) })?;
        let store = &volume.store;
        let mut reply = HelloReply {
            iod: store.iod(),
            fsid: store.fsid(),
            verifier: store.verifier(),
            version,
            checksums: args.checksums,
            max_payload,
            max_extents: EXTENTS_MAX as u32,
            nonce,
            proof: Proof::default(),
        };
        let transcript = ticket.answer(&args, &mut reply);
        self.pending_session =
            Some(PendingSession { volume, ticket, transcript, checksums: args.checksums, max_payload });
        Ok(reply)
    }

    /// Executes PROVE: opens the session that HELLO named, if the peer proves that it knows the secret of the ticket.
    fn prove(&mut self, args: ProveArgs) -> Result<ProveReply, Failure> {
        let Some(PendingSession { volume, ticket, transcript, checksums, max_payload }) = self.pending_session.take()
        else {
            return Err(Failure { status: Status::Inval, detail: Some("PROVE must follow HELLO, once".into()) });
        };
        if !ticket.is_proven(&transcript, &args) {
            return Err(Status::CapRefused.into());
        }
        // Mark the peer as authenticated before `join`. `join` may wait for changes on older connections, and the iod
        // must not close this connection as unauthenticated during the wait.
        self.socket.is_known_now();
        let membership = volume.lines.join(args.origin, self.socket.hanger()).map_err(|Replaced| Failure {
            status: Status::Delay,
            detail: Some("the same owner has made a newer connection".into()),
        })?;
        let mut reply = ProveReply {
            local: volume.local.clone(),
            data_server: volume.data_server.clone(),
            software: concat!("weir ", env!("CARGO_PKG_VERSION")).into(),
            proof: Proof::default(),
        };
        ticket.seal(&transcript, &mut reply);
        self.session = Some(Session { number: ticket.session, volume, membership, checksums, max_payload });
        Ok(reply)
    }

    /// Checks that a capability grants the rights `needed` on one object to this session.
    pub(super) fn check(&self, cap: &Capability, needed: Rights) -> Result<(), Failure> {
        let session = self.session.as_ref().ok_or(Status::NoSession)?;
        session.volume.judge.object(cap, session.number, needed)?;
        if session.number != MGR_SESSION {
            session.volume.store.check_confirmed()?;
        }
        Ok(())
    }

    /// Checks a capability; returns the object and generation that it names. Only REGISTER and OPEN_LOG may change the
    /// bytes of an index. Refuses data logs with numbers that OPEN_LOG never gives to a writer.
    pub(super) fn object(&self, cap: &Capability, needed: Rights) -> Result<(Arc<Object>, Generation), Failure> {
        self.check(cap, needed)?;
        let stream = cap.object.stream;
        let is_impossible_log = stream != INDEX_STREAM && stream >= LOG_STREAMS + LOGS_MAX;
        if is_impossible_log || needed == Rights::WRITE && stream == INDEX_STREAM {
            return Err(Status::CapRefused.into());
        }
        Ok((self.store()?.object(cap.object), cap.generation))
    }

    fn max_payload(&self) -> u64 {
        self.session.as_ref().map_or(0, |s| u64::from(s.max_payload))
    }

    fn checksums(&self) -> bool {
        self.session.as_ref().is_some_and(|s| s.checksums)
    }

    fn read(&mut self, xid: u32, args: &ReadArgs) -> Result<(), Broken> {
        let mut plan = std::mem::take(&mut self.plan);
        let open = self.plan_read(args, &mut plan);
        let result = match &open {
            Ok(open) => self.send_data(xid, &mut plan, open.as_deref()),
            Err(failure) => self.answer::<Nothing>(xid, Err(failure.clone())),
        };
        self.plan = plan;
        result
    }

    fn plan_read(&self, args: &ReadArgs, plan: &mut ReadPlan) -> Result<Option<Arc<Open>>, Failure> {
        let (object, generation) = self.object(&args.cap, Rights::READ)?;
        if args.extents.iter().map(|e| u64::from(e.len)).sum::<u64>() > self.max_payload() {
            return Err(Status::TooBig.into());
        }
        object.plan_read(self.store()?, generation, &args.extents, plan)
    }

    fn send_data(&mut self, xid: u32, plan: &mut ReadPlan, open: Option<&Open>) -> Result<(), Broken> {
        let Some(open) = open else { return self.send_head(xid, plan, &[]) };
        let len = plan.data_len as usize;
        let checksums = self.checksums();
        let by_file = !checksums && open.sums.is_none() && plan.data_len >= SENDFILE_MIN && self.socket.sends_files();
        if by_file
            && !open.read_by_copy.load(Ordering::Relaxed)
            && let Some(file) = open.file.as_file()
        {
            return self.send_from_file(xid, plan, open, file);
        }
        let mut borrowed: Buffer;
        let mut small = std::mem::take(&mut self.small);
        let buffer = if len <= SMALL {
            small.resize(SMALL + 4, 0);
            &mut small[..]
        } else {
            borrowed = self.daemon.pool.borrow(self.machine);
            &mut borrowed[..]
        };
        if let Err(failure) = open.read(&plan.runs, &mut buffer[..len], self.counters()) {
            self.small = small;
            return self.answer::<Nothing>(xid, Err(failure));
        }
        if checksums {
            let mut rest = &buffer[..len];
            for piece in plan.pieces.iter_mut().filter(|p| p.kind == PieceKind::Data) {
                let (data, behind) = rest.split_at(piece.len as usize);
                piece.crc32c = crc32c(data);
                rest = behind;
            }
        }
        let padded = len.next_multiple_of(4);
        buffer[len..padded].fill(0);
        Counters::add(&self.counters().bytes_read, plan.data_len);
        let result = self.send_head(xid, plan, &buffer[..padded]);
        self.small = small;
        result
    }

    /// Sends a READ reply: the size of the object and the list of pieces (data, holes), followed by `data`, which
    /// includes the XDR padding.
    fn send_head(&mut self, xid: u32, plan: &mut ReadPlan, data: &[u8]) -> Result<(), Broken> {
        self.encode_head(xid, plan);
        self.send_output(data)
    }

    fn encode_head(&mut self, xid: u32, plan: &mut ReadPlan) {
        let len = plan.data_len as usize;
        let head = ReadHead { size: plan.size, pieces: std::mem::take(&mut plan.pieces) };
        self.encode(&ReplyHeader::success(xid), len.next_multiple_of(4), |out| {
            out.u32(0);
            head.encode(out);
            out.u32(len as u32);
        });
        plan.pieces = head.pieces;
    }

    fn send_from_file(&mut self, xid: u32, plan: &mut ReadPlan, open: &Open, file: &File) -> Result<(), Broken> {
        self.encode_head(xid, plan);
        self.socket.wait_begins();
        self.socket.send(&self.output, &[], true)?;
        for (offset, len) in &plan.runs {
            match self.socket.send_file(file, HEAD_LEN + offset, *len) {
                Ok(()) => {}
                Err(SendFile::Socket(error)) => return Err(error.into()),
                Err(SendFile::File(error)) => {
                    // `sendfile` failed after the iod had sent the beginning of the reply, so the iod cannot return the
                    // error in this reply. It closes the connection. The next READ of this object copies the bytes
                    // through memory, and can return an error.
                    open.read_by_copy.store(true, Ordering::Relaxed);
                    return Err(error.into());
                }
            }
        }
        let padding = (plan.data_len as usize).next_multiple_of(4) - plan.data_len as usize;
        self.socket.send(&[0; 4][..padding], &[], false)?;
        self.socket.wait_ends();
        Counters::add(&self.counters().bytes_sent_file, plan.data_len);
        Ok(())
    }

    /// Executes a WRITE, and receives the last `rest` bytes of its payload from the socket.
    pub(super) fn write(&mut self, xid: u32, mut input: Reader, rest: usize) -> Result<(), Broken> {
        if self.session.is_none() {
            return self.answer::<Nothing>(xid, Err(Status::NoSession.into()));
        }
        let (head, len) = match WriteHead::decode_before_data(&mut input) {
            Ok(decoded) => decoded,
            Err(error) => return self.garbage(xid, error),
        };
        if input.remaining() + rest != len.next_multiple_of(4) {
            return self
                .garbage(xid, if input.remaining() + rest < len { Malformed::Short } else { Malformed::Trailing });
        }
        let first = input.rest();
        let first = first.slice(..first.len().min(len));
        let result = if rest == 0 {
            self.write_payload(&head, len, [&first, &[]])
        } else {
            let mut buffer = self.daemon.pool.borrow(self.machine);
            self.socket.wait_begins();
            self.socket.receive_exact(&mut buffer[..rest])?;
            self.socket.wait_ends();
            self.write_payload(&head, len, [&first, &buffer[..len - first.len()]])
        };
        self.answer(xid, result)
    }

    fn write_payload(&self, head: &WriteHead, len: usize, data: [&[u8]; 2]) -> Result<WriteReply, Failure> {
        let (object, generation) = self.object(&head.cap, Rights::WRITE)?;
        if len as u64 > self.max_payload() {
            return Err(Status::TooBig.into());
        }
        if self.checksums() {
            verify(&head.extents, data)?;
        }
        let store = self.store()?;
        let mut size = object.write(store, generation, (&head.extents, head.least), data)?;
        if head.stable {
            size = size.max(object.commit(store, generation)?);
        }
        Ok(WriteReply { verifier: store.verifier(), stable: head.stable, size })
    }

    fn commit(&mut self, args: ObjectArgs) -> Result<CommitReply, Failure> {
        let (object, generation) = self.object(&args.cap, Rights::WRITE)?;
        let size = object.commit(self.store()?, generation)?;
        Ok(CommitReply { verifier: self.store()?.verifier(), size })
    }

    fn size(&mut self, args: ObjectArgs) -> Result<SizeReply, Failure> {
        let (object, generation) = self.object(&args.cap, Rights::READ)?;
        let (size, allocated) = object.size(self.store()?, generation)?;
        let mgr = self.session.as_ref().is_some_and(|session| session.number == MGR_SESSION);
        let changed = mgr && self.volume()?.write_reports.take_changed(args.cap.object);
        Ok(SizeReply { size, allocated, changed })
    }

    fn truncate(&mut self, args: TruncateArgs) -> Result<TruncateReply, Failure> {
        let (object, generation) = self.object(&args.cap, Rights::WRITE)?;
        let size = object.truncate(self.store()?, generation, args.size)?;
        Ok(TruncateReply { size })
    }

    fn remove(&mut self, args: ObjectArgs) -> Result<Nothing, Failure> {
        self.check(&args.cap, Rights::ADMIN)?;
        self.store()?.remove(args.cap.object, args.cap.generation)?;
        Ok(Nothing)
    }

    fn punch(&mut self, args: PunchArgs) -> Result<Nothing, Failure> {
        let (object, generation) = self.object(&args.cap, Rights::WRITE)?;
        object.punch(self.store()?, generation, args.offset, args.len)?;
        Ok(Nothing)
    }

    fn reserve(&mut self, args: ReserveArgs) -> Result<Nothing, Failure> {
        let (object, generation) = self.object(&args.cap, Rights::WRITE)?;
        object.reserve(self.store()?, generation, args.offset, args.len)?;
        Ok(Nothing)
    }

    fn seek(&mut self, args: SeekArgs) -> Result<SeekReply, Failure> {
        let (object, generation) = self.object(&args.cap, Rights::READ)?;
        let offset = object.seek(self.store()?, generation, args.offset, args.what)?;
        Ok(SeekReply { offset })
    }

    /// Checks that a capability grants ADMIN on the whole store to this session.
    fn check_store(&self, cap: &Capability) -> Result<(), Failure> {
        let session = self.session.as_ref().ok_or(Status::NoSession)?;
        Ok(session.volume.judge.store(cap, session.number)?)
    }

    fn list(&mut self, args: ListArgs) -> Result<ListReply, Failure> {
        self.check_store(&args.cap)?;
        self.store()?.list(args.after, args.max)
    }

    fn claim(&mut self, args: ClaimArgs) -> Result<ClaimReply, Failure> {
        self.check_store(&args.cap)?;
        let reply = self.store()?.claim(args.claiming.as_ref(), args.highest)?;
        if reply.taken {
            self.volume()?.judge.claimed(args.now, args.least_epoch);
        }
        Ok(reply)
    }

    fn scrub(&mut self, args: ScrubArgs) -> Result<ScrubReply, Failure> {
        self.check_store(&args.cap)?;
        let mut buffer = self.daemon.pool.borrow(self.machine);
        self.store()?.scrub(args.from, args.budget, &mut buffer)
    }

    fn write_reports(&mut self, args: WriteReportsArgs) -> Result<WriteReportsReply, Failure> {
        self.check_store(&args.cap)?;
        Ok(self.volume()?.write_reports.next(args.known, REPORT_WAIT))
    }

    fn lengths(&mut self, args: LengthsArgs) -> Result<LengthsReply, Failure> {
        self.check_store(&args.cap)?;
        Ok(LengthsReply { asked: self.volume()?.lengths.next(&args.answers, REPORT_WAIT) })
    }

    fn stats(&mut self, _: Nothing) -> Result<StatsReply, Failure> {
        let (capacity, free) = self
            .store()?
            .capacity()
            .map_err(|e| Failure { status: Status::Io, detail: Some(format!("cannot get the free space: {e}")) })?;
        Ok(StatsReply { capacity, free, counters: self.daemon.counters_of(self.volume()?) })
    }

    fn fence(&mut self, args: FenceArgs) -> Result<Nothing, Failure> {
        self.check(&args.cap, Rights::ADMIN)?;
        self.store()?.fence(args.cap.object, args.cap.generation, args.generation)?;
        Ok(Nothing)
    }
}

/// Decodes one value, and fails if bytes remain after it.
fn take<A: Xdr>(input: &mut Reader) -> Result<A, Malformed> {
    let args = A::decode(input)?;
    input.finish()?;
    Ok(args)
}

/// Verifies the CRC-32C of the data of every extent of a WRITE.
fn verify(extents: &[WriteExtent], data: [&[u8]; 2]) -> Result<(), Failure> {
    let [mut first, mut second] = data;
    for extent in extents {
        let len = extent.len as usize;
        let (a, rest) = first.split_at(len.min(first.len()));
        let (b, behind) = second.split_at(len - a.len());
        (first, second) = (rest, behind);
        let sum = match (a, b) {
            (a, []) => crc32c(a),
            ([], b) => crc32c(b),
            (a, b) => {
                let mut sum = Crc32c::new();
                sum.update(a);
                sum.update(b);
                sum.finish()
            }
        };
        if sum != extent.crc32c {
            let detail = format!("extent of {} bytes at {}", extent.len, extent.offset);
            return Err(Failure { status: Status::BadChecksum, detail: Some(detail) });
        }
    }
    Ok(())
}
