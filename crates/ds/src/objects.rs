//! READ, WRITE and COMMIT of the NFS data server: this module maps the file offsets of the requests to offsets in local
//! objects.

use bytes::Bytes;
use iod::{Daemon, ObjectBytes, Volume};
use layout::distributions::{Distribution, DistributionId};
use nfs::data_server::DataServer;
use nfs::fs::{Ctx, ReadOut, Result, Stability, WriteOut};
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, Fsid, Status, Verifier};
use wire::native::{DataHandle, Failure, Rights};
use xdr::Xdr;

/// Number of attempts for a request that fails because the iod temporarily lacks file descriptors or memory; the server
/// waits `PAUSE` between attempts. A client that gets NFS4ERR_DELAY waits for 15 seconds, so a retry on the server is
/// faster.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// Number of times that READ repeats the read of an object that changed while the mgr determined the file length.
const AGAIN: u32 = 4;

/// The objects of an iod, presented to the NFS server as a data server's file system.
pub(crate) struct Objects {
    daemon: Arc<Daemon>,
}

/// The object that a request addresses: the volume, the verified handle, and the offset in the object.
struct Target {
    volume: Arc<Volume>,
    handle: DataHandle,
    /// Offset in the object at which the requested range begins.
    offset: u64,
}

impl Objects {
    pub(crate) fn new(daemon: Arc<Daemon>) -> Self {
        Objects { daemon }
    }

    /// Returns the iod daemon that owns the objects.
    pub(crate) fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn handle(&self, ctx: &Ctx, needed: Rights) -> Result<(Arc<Volume>, DataHandle)> {
        let handle = DataHandle::from_bytes(&ctx.handle).map_err(|_| Status::BadHandle)?;
        // PUTFH has verified the filehandle. Verify the filehandle again, because this also finds the volume whose key
        // signed the handle.
        let volume = self.daemon.check_handle(&handle)?.clone();
        if handle.rights.contains(needed) { Ok((volume, handle)) } else { Err(Status::CapRefused) }
    }

    /// Maps a file range to the object on this iod. Returns `NotHere` if another iod holds a part of the range. A
    /// client that sends such a range does not know the striping of the file. If the iod served the request, the client
    /// would take the next bytes of the object for the next bytes of the file.
    fn target(&self, ctx: &Ctx, needed: Rights, offset: u64, len: u64) -> Result<Target> {
        let (volume, handle) = self.handle(ctx, needed)?;
        let distribution = distribution(&handle)?;
        let place = distribution.place(offset);
        let unit = distribution.stripe_unit();
        let here = place.index as u32 == handle.stripe_index;
        let whole = distribution.count() == 1 || len <= unit - offset % unit;
        if here && whole { Ok(Target { volume, handle, offset: place.offset }) } else { Err(Status::NotHere) }
    }

    /// Runs blocking file system calls on the blocking thread pool, and retries on `Status::Delay`.
    async fn work<T: Send + 'static>(
        volume: &Arc<Volume>,
        work: impl Fn(&Volume) -> std::result::Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<T> {
        let work = Arc::new(work);
        for _ in 0..TRIES {
            let (volume, now) = (volume.clone(), work.clone());
            let done = tokio::task::spawn_blocking(move || now(&volume)).await.map_err(|_| Status::ServerFault)?;
            match done {
                Ok(done) => return Ok(done),
                Err(failure) if failure.status == Status::Delay => tokio::time::sleep(PAUSE).await,
                Err(failure) => return Err(told(&failure)),
            }
        }
        Err(Status::Fenced)
    }
}

fn distribution(handle: &DataHandle) -> Result<Distribution> {
    let (unit, count) = (u64::from(handle.stripe_unit), handle.stripe_count as usize);
    Distribution::new(DistributionId::SimpleStripe, unit, count).map_err(|_| Status::BadHandle)
}

/// Builds the reply to a READ whose range extends past the end of the object. The file has `length` bytes. The reply
/// has zeros from the end of the object to the end of the file.
fn ended(got: ObjectBytes, offset: u64, len: u32, length: u64) -> ReadOut {
    let rest = length.saturating_sub(offset);
    let inside = rest.min(len.into()) as usize;
    let data = if inside <= got.data.len() {
        // The object still has bytes beyond the end of the file. The file was truncated, and the mgr will truncate the
        // object soon, so the reply omits these bytes.
        got.data.slice(..inside)
    } else {
        let mut data = Vec::with_capacity(inside);
        data.extend_from_slice(&got.data);
        data.resize(inside, 0);
        data.into()
    };
    ReadOut { data: data.into(), eof: rest <= len.into() }
}

/// Converts a failure to the NFS status for the client. For an unexpected failure of one object, the status is
/// `Fenced`: the client then discards only the layout of this file, and sends its requests to the mgr. After a status
/// that concerns the whole iod, the client would stop using the iod for all files.
fn told(failure: &Failure) -> Status {
    match failure.status {
        Status::NoSpc | Status::DQuot | Status::FBig | Status::Rofs | Status::Inval => failure.status,
        Status::Fenced => Status::Fenced,
        _ => {
            tracing::warn!("an object cannot be used: {failure}");
            Status::Fenced
        }
    }
}

impl DataServer for Objects {
    fn fsid(&self) -> Fsid {
        self.daemon.first().store().fsid()
    }

    fn decode_handle(&self, handle: &[u8]) -> Result<FileId> {
        let handle = DataHandle::from_bytes(&Bytes::copy_from_slice(handle)).map_err(|_| Status::BadHandle)?;
        self.daemon.check_handle(&handle)?;
        distribution(&handle)?;
        Ok(handle.object.file)
    }

    async fn read(&self, ctx: &Ctx, offset: u64, len: u32) -> Result<ReadOut> {
        let Target { volume, handle, offset: at } = self.target(ctx, Rights::READ, offset, len.into())?;
        let (object, generation) = (handle.object, handle.generation);
        let bytes = move |volume: &Volume| volume.read_object(object, generation, at, len);
        let mut got = Self::work(&volume, bytes).await?;
        for _ in 0..AGAIN {
            if got.data.len() >= len as usize {
                // The object contains all requested bytes, so reply without a query for the file length, and without
                // the EOF flag. If the file ends here, the client's next READ finds the end.
                return Ok(ReadOut { data: got.data.into(), eof: false });
            }
            // The object ends inside the requested range. The file may end at the same offset or continue with a hole,
            // and only the mgr knows which.
            let Some(length) = Self::work(&volume, move |volume| Ok(volume.file_length(object))).await? else { break };
            // If the object size has not changed since the read above, the object also had this size when the mgr
            // replied. So the file length in the mgr's reply belongs to the bytes that were read.
            if Self::work(&volume, move |volume| volume.object_size(object, generation)).await? == got.size {
                if got.size < length.least {
                    tracing::error!(
                        %object,
                        size = got.size,
                        least = length.least,
                        "an object has lost bytes"
                    );
                    break;
                }
                return Ok(ended(got, offset, len, length.file));
            }
            got = Self::work(&volume, bytes).await?;
        }
        // On `NotHere` the client repeats the READ at the mgr, which can query all iods of the file.
        Err(Status::NotHere)
    }

    async fn write(&self, ctx: &Ctx, offset: u64, data: Bytes, stable: Stability) -> Result<WriteOut> {
        let Target { volume, handle, offset } = self.target(ctx, Rights::WRITE, offset, data.len() as u64)?;
        let (object, grant) = (handle.object, handle.grant);
        let count = data.len() as u32;
        let durable = stable != Stability::Unstable;
        let write =
            move |volume: &Volume| volume.write_object(handle.object, handle.generation, offset, &data, durable);
        let size = Self::work(&volume, write).await?;
        let mut told = stable;
        if stable == Stability::FileSync {
            // The client sends no LAYOUTCOMMIT for a FILE_SYNC write, so the iod reports the new size and the change to
            // the mgr.
            let tell = move |volume: &Volume| Ok(volume.tell_written(object, grant, size));
            if !Self::work(&volume, tell).await? {
                // The mgr has not received the iod's report of the write, so the iod replies with DATA_SYNC: only the
                // data are durable. After DATA_SYNC the client itself sends LAYOUTCOMMIT.
                told = Stability::DataSync;
            }
        }
        Ok(WriteOut { count, stable: told, verifier: volume.verifier() })
    }

    async fn commit(&self, ctx: &Ctx) -> Result<Verifier> {
        let (volume, handle) = self.handle(ctx, Rights::WRITE)?;
        Self::work(&volume, move |volume| volume.commit_object(handle.object, handle.generation)).await?;
        Ok(volume.verifier())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_ends_where_the_mgr_says_and_has_zeros_up_to_there() {
        let offset = 1000;
        for (stored, len, length) in (0..4).flat_map(|stored| {
            (stored + 1..6).flat_map(move |len| (990..1010).map(move |length| (stored, len, length)))
        }) {
            let data: Vec<u8> = (1..=stored as u8).collect();
            let out = ended(ObjectBytes { data: data.clone().into(), size: 77 }, offset, len, length);
            // Returns the expected byte at a file offset: a stored byte, or zero beyond the end of the object.
            let byte = |at: u64| data.get((at - offset) as usize).copied().unwrap_or(0);
            let right: Vec<u8> = (offset..(offset + u64::from(len)).min(length)).map(byte).collect();
            assert_eq!(out.data.to_bytes(), right, "{stored} {len} {length}");
            assert_eq!(out.eof, offset + u64::from(len) >= length, "{stored} {len} {length}");
        }
        let far = ended(ObjectBytes { data: Bytes::new(), size: 0 }, u64::MAX - 10, 10, 5);
        assert!(far.data.is_empty() && far.eof);
    }
}
