//! The mgr path: reads, writes and commits file data through the mgr with the NFS operations READ, WRITE and COMMIT.

use crate::compound::{Caller, Compound, Results};
use crate::counters::{Tally, add};
use crate::drivers::Written;
use crate::session::Session;
use crate::{Error, Result};
use bytes::Bytes;
use nfs::client::fattr;
use types::limits::PAYLOAD_MAX;
use types::{ByteRange, Status, Verifier};
use wire::nfs4::*;

/// An open file, with the values that requests on the mgr path need.
pub(crate) struct Opened<'a> {
    pub(crate) session: &'a Session,
    pub(crate) tally: &'a Tally,
    pub(crate) handle: &'a Bytes,
    /// The stateid of an open, lock or delegation that allows the operation.
    pub(crate) stateid: stateid4,
    /// The credentials of the caller that opened the file.
    pub(crate) caller: Caller,
}

impl Opened<'_> {
    fn begin(&self, what: &str) -> Compound {
        let mut compound = Compound::new(format!("{what} through the mgr")).by(&self.caller);
        compound.putfh(self.handle);
        compound
    }

    /// Appends a GETATTR of the mgr's queue delay to a COMPOUND, if the client uses the queue delay.
    fn ask_load(&self, compound: &mut Compound) {
        if self.session.load().is_wanted() {
            compound.getattr_of(fattr::LOAD);
        }
    }

    /// Records the queue delay from the reply. Ignores a missing or malformed queue delay, because the result of the
    /// read, write or commit does not depend on it.
    fn hear_load(&self, results: &mut Results) {
        if self.session.load().is_wanted() {
            let _ = results.values();
        }
    }

    /// Reads up to `len` bytes, at most the largest payload of one request. Returns the bytes, and whether the read
    /// reached the end of the file. The server may return fewer bytes than requested.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<(Bytes, bool)> {
        let mut compound = self.begin("reading");
        let count = len.min(PAYLOAD_MAX) as u32;
        compound.op(OP_READ, &READ4args { stateid: self.stateid, offset, count });
        self.ask_load(&mut compound);
        let mut results = self.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        let got: READ4resok = results.take(OP_READ)?;
        self.hear_load(&mut results);
        if got.data.len() > count as usize {
            return Err(Error::protocol("reading through the mgr: the mgr returned more bytes than requested"));
        }
        add(&self.tally.read_via_mgr, got.data.len() as u64);
        Ok((got.data, got.eof))
    }

    /// Writes all of `data`, which is at most the largest payload of one request. If the server writes only some of
    /// the bytes, sends another request for the remaining bytes.
    pub(crate) async fn write(&self, offset: u64, data: Bytes, stable: bool) -> Result<Written> {
        let how = if stable { FILE_SYNC4 } else { UNSTABLE4 };
        let mut done = 0;
        let mut written: Option<Written> = None;
        loop {
            let mut compound = self.begin("writing");
            let rest = data.slice(done..);
            let args = WRITE4args { stateid: self.stateid, offset: offset + done as u64, stable: how, data: rest };
            compound.op(OP_WRITE, &args);
            self.ask_load(&mut compound);
            let mut results = self.session.call(compound).await?;
            results.done(&[OP_PUTFH])?;
            let got: WRITE4resok = results.take(OP_WRITE)?;
            // Count the written bytes only after a success. If the mgr refuses the stateid of a WRITE, the client
            // repeats the WRITE, and must not count the bytes twice.
            add(&self.tally.written_via_mgr, got.count.into());
            self.hear_load(&mut results);
            let now = Written { verifier: Verifier(got.writeverf), stable: got.committed != UNSTABLE4 };
            if let Some(before) = written
                && (before.verifier, before.stable) != (now.verifier, now.stable)
            {
                // The mgr restarted between two WRITEs of these bytes, and may have lost the bytes of the first WRITE.
                // So send all bytes again.
                (done, written) = (0, None);
                continue;
            }
            done += got.count as usize;
            written = Some(now);
            if done >= data.len() {
                return Ok(now);
            }
            if got.count == 0 {
                return Err(Error::status(Status::Io, "writing through the mgr: the mgr wrote 0 bytes"));
            }
        }
    }

    /// Commits the file, and returns the verifier. All earlier unstable writes that returned the same verifier are now
    /// durable.
    pub(crate) async fn commit(&self) -> Result<Verifier> {
        let mut compound = self.begin("committing");
        compound.op(OP_COMMIT, &COMMIT4args { offset: 0, count: 0 });
        self.ask_load(&mut compound);
        let mut results = self.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        let got: COMMIT4resok = results.take(OP_COMMIT)?;
        self.hear_load(&mut results);
        Ok(Verifier(got.writeverf))
    }

    /// Punches a hole (DEALLOCATE).
    pub(crate) async fn punch(&self, range: ByteRange) -> Result<()> {
        let mut compound = self.begin("punching a hole");
        let args = DEALLOCATE4args { da_stateid: self.stateid, da_offset: range.offset, da_length: range.len };
        compound.op(OP_DEALLOCATE, &args);
        let mut results = self.session.call(compound).await?;
        results.done(&[OP_PUTFH, OP_DEALLOCATE])
    }

    /// Reserves space for a range, and extends the file to the end of the range (ALLOCATE).
    pub(crate) async fn allocate(&self, range: ByteRange) -> Result<()> {
        let mut compound = self.begin("allocating");
        let args = ALLOCATE4args { aa_stateid: self.stateid, aa_offset: range.offset, aa_length: range.len };
        compound.op(OP_ALLOCATE, &args);
        let mut results = self.session.call(compound).await?;
        results.done(&[OP_PUTFH, OP_ALLOCATE])
    }

    /// Copies bytes from the start of `range` of another open file to offset `target` of this file. The mgr may copy
    /// fewer bytes than requested. Returns the number of copied bytes, and the write verifier. The copied bytes are
    /// durable after a COMMIT that returns the same verifier.
    pub(crate) async fn copy(&self, target: u64, from: &Opened<'_>, range: ByteRange) -> Result<(u64, Verifier)> {
        let mut compound = Compound::new("copying").cached();
        compound.putfh(from.handle).void(OP_SAVEFH).putfh(self.handle);
        let args = COPY4args {
            ca_src_stateid: from.stateid,
            ca_dst_stateid: self.stateid,
            ca_src_offset: range.offset,
            ca_dst_offset: target,
            ca_count: range.len,
            ca_consecutive: true,
            ca_synchronous: true,
            ca_source_server: Vec::new(),
        };
        compound.op(OP_COPY, &args);
        let mut results = self.session.call(compound).await?;
        results.done(&[OP_PUTFH, OP_SAVEFH, OP_PUTFH])?;
        let got: COPY4resok = results.take(OP_COPY)?;
        Ok((got.cr_response.wr_count, Verifier(got.cr_response.wr_writeverf)))
    }

    /// Returns the offset of the first byte of data, or of a hole, at or after `offset` (SEEK). Returns `None` if
    /// `offset` is at or beyond the end of the file, or if the caller seeks data and no data follow.
    pub(crate) async fn seek(&self, offset: u64, what: data_content4) -> Result<Option<u64>> {
        let mut compound = self.begin("seeking");
        compound.op(OP_SEEK, &SEEK4args { sa_stateid: self.stateid, sa_offset: offset, sa_what: what });
        let mut results = self.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        match results.take::<seek_res4>(OP_SEEK) {
            Ok(got) if what == NFS4_CONTENT_DATA && got.sr_eof => Ok(None),
            Ok(got) => Ok(Some(got.sr_offset)),
            Err(error) if error.is(Status::NxIo) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
