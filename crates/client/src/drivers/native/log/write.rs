//! Writes and commits of a log file.

use super::LogLayout;
use super::log_file::verifier;
use super::own_log::OwnLog;
use crate::Error;
use crate::drivers::native::file_ranges::worst;
use crate::drivers::{Attempt, NotDone, Payload, Written};
use bytes::Bytes;
use futures_util::future::join_all;
use log_index::LogNumber;
use std::sync::Arc;
use types::{ByteRange, Verifier};
use wire::native::{ObjectArgs, OpenLogReply, Procedure};
use xdr::Segments;

/// How often the client sends a stable write if iods restart before its bytes are durable.
const STABLE_TRIES: u32 = 3;

impl LogLayout {
    /// Writes file ranges of a lane, see [`crate::drivers::Layout::write`].
    pub(super) async fn write_file(
        &self,
        lane: usize,
        parts: &[ByteRange],
        payload: &Payload,
        stable: bool,
    ) -> Attempt<Written> {
        self.check_lane(lane, parts)?;
        let mut tries = if stable { STABLE_TRIES } else { 1 };
        loop {
            let written = self.append(lane, parts, payload, stable).await?;
            tries -= 1;
            if written.stable || tries == 0 {
                return Ok(written);
            }
        }
    }

    /// Appends the bytes to the data log of this client, and registers them.
    ///
    /// If this fails after some iods have received bytes, nobody ever registers these bytes of the log.
    async fn append(&self, lane: usize, parts: &[ByteRange], payload: &Payload, stable: bool) -> Attempt<Written> {
        let mut log = self.own_log().await?;
        if log.lanes[lane].is_full() {
            self.commit_log(lane, &log).await?;
            log = self.own_log().await?;
        }
        let (range, runs) = log.take(parts)?;
        self.write_log(&log, range, payload, stable).await?;
        let mut durable = self.register(lane, &log, runs, stable).await?;
        if stable && !durable {
            durable = self.commit_log(lane, &log).await? == log.verifier();
        }
        if !durable {
            self.file.written();
        }
        Ok(Written { verifier: log.verifier(), stable: durable })
    }

    /// Returns the data log of this client for the present epoch, and opens one if there is none.
    async fn own_log(&self) -> Attempt<Arc<OwnLog>> {
        let mut own = self.file.own.lock().await;
        let epoch = self.file.epoch();
        if let Some(log) = own.as_ref().filter(|log| log.epoch == epoch) {
            return Ok(log.clone());
        }
        let target = self.index_target(0)?;
        let args = ObjectArgs { cap: target.cap.clone() };
        let reply: OpenLogReply = self.iods().call(&target, Procedure::OpenLog, &args, "opening a data log").await?;
        let number = self.checked(LogNumber(reply.log))?;
        let log = Arc::new(OwnLog::new(number, epoch, self.count()));
        *own = Some(log.clone());
        Ok(log)
    }

    /// Writes the payload to a range of a data log; durably if `stable`. Returns after all iods have replied.
    async fn write_log(&self, log: &OwnLog, range: ByteRange, payload: &Payload, stable: bool) -> Attempt<()> {
        let mut writes: Vec<(usize, ByteRange, Segments)> = Vec::new();
        let places = self.places(log.log)?;
        let mut data = Slices { parts: payload.data.parts(), taken: 0 };
        for piece in places.pieces(range) {
            let mut bytes = data.take(piece.object.len as usize);
            // The units of a log that are on one iod follow one another in the object.
            match writes
                .iter_mut()
                .find(|(index, object, _)| *index == piece.index && object.end() == piece.object.offset)
            {
                Some((_, object, data)) => {
                    object.len += piece.object.len;
                    data.extend(std::mem::take(&mut bytes));
                }
                None => writes.push((piece.index, piece.object, bytes)),
            }
        }
        if let [(index, object, _)] = writes[..] {
            // The payload keeps its checksums if the client sends it again.
            return self.write_object(log, index, object, payload, stable).await;
        }
        let writes = writes.into_iter().map(|(index, object, data)| async move {
            self.write_object(log, index, object, &Payload::new(data), stable).await
        });
        worst(join_all(writes).await)
    }

    async fn write_object(
        &self,
        log: &OwnLog,
        index: usize,
        object: ByteRange,
        payload: &Payload,
        stable: bool,
    ) -> Attempt<()> {
        let target = self.log_target(log.log, index)?;
        let reply = self.iods().write(&target, &[object], payload, (stable, &|| 0)).await?;
        self.file.saw(index, reply.verifier);
        if let Some(object) = log.object(index).filter(|_| !reply.stable) {
            object.written();
        }
        Ok(())
    }

    /// Makes the writes to a lane durable, see [`crate::drivers::Layout::commit`].
    pub(super) async fn commit_lane(&self, lane: usize) -> Attempt<Verifier> {
        if lane >= self.count() {
            return Err(NotDone::Failed(Error::usage(format!("committing: the layout has no iod {lane}"))));
        }
        let log = self.file.own.lock().await.clone();
        match log {
            Some(log) => {
                let verifier = self.commit_log(lane, &log).await?;
                if log.is_committed() || verifier != log.verifier() {
                    self.file.committed();
                }
                Ok(verifier)
            }
            None => Ok(verifier(self.file.epoch())),
        }
    }

    /// Makes the registrations of a data log with the shard of a lane durable, after their bytes; returns the verifier
    /// of the epoch at the end. If that is not the epoch of the log, iods may have lost some of them.
    pub(super) async fn commit_log(&self, lane: usize, log: &OwnLog) -> Attempt<Verifier> {
        // The client registers bytes after it has recorded their writes. So the COMMITs cover the bytes of all
        // registrations up to this one.
        let registered = log.lanes[lane].registered();
        worst(join_all(log.unsynced().into_iter().map(|index| self.commit_object(log, index))).await)?;
        let epoch = self.file.epoch();
        if epoch != log.epoch || registered == 0 {
            return Ok(verifier(epoch));
        }
        let confirmed = self.send_registration(lane, log, (registered, registered), Bytes::new()).await;
        match confirmed {
            // A late confirmation does no harm: the bytes are durable.
            Err(NotDone::Unanswered(error)) => Err(NotDone::NotAttempted(error)),
            Err(not_done) => Err(not_done),
            Ok(()) => Ok(verifier(self.file.epoch())),
        }
    }

    /// Sends COMMIT for the object of a data log on one iod, unless a COMMIT of another task covers all writes that the
    /// iod had acknowledged before the call.
    async fn commit_object(&self, log: &OwnLog, index: usize) -> Attempt<()> {
        let Some(object) = log.object(index) else { return Ok(()) };
        let needed = object.acknowledged();
        let _committing = object.committing.lock().await;
        if object.committed() >= needed {
            return Ok(());
        }
        let covers = object.acknowledged();
        let reply = self.iods().commit(&self.log_target(log.log, index)?).await?;
        self.file.saw(index, reply.verifier);
        object.covered(covers);
        Ok(())
    }
}

/// The bytes of a payload that the caller has not taken yet.
struct Slices<'a> {
    parts: &'a [Bytes],
    /// Number of bytes of the first part that the caller has taken.
    taken: usize,
}

impl Slices<'_> {
    /// Takes the next `len` bytes without copying them, or all bytes if there are fewer.
    fn take(&mut self, mut len: usize) -> Segments {
        let mut out = Segments::default();
        while len > 0 {
            let Some((first, rest)) = self.parts.split_first() else { break };
            let now = len.min(first.len() - self.taken);
            out.push(first.slice(self.taken..self.taken + now));
            self.taken += now;
            len -= now;
            if self.taken == first.len() {
                (self.parts, self.taken) = (rest, 0);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_payload_cross_its_segments() {
        let parts = [Bytes::from_static(b"abc"), Bytes::from_static(b"defgh")];
        let mut slices = Slices { parts: &parts, taken: 0 };
        let text = |segments: Segments| segments.to_bytes();
        assert_eq!(text(slices.take(2)), "ab");
        assert_eq!(text(slices.take(3)), "cde");
        assert_eq!(text(slices.take(9)), "fgh");
        assert!(slices.take(1).is_empty());
    }
}
