//! READ, WRITE and COMMIT of a file's offsets on the object that is here.

use bytes::Bytes;
use iod::{ObjectBytes, Served};
use layout::distributions::{Distribution, DistributionId};
use nfs::data_server::DataServer;
use nfs::fs::{Ctx, ReadOut, Result, Stability, WriteOut};
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, Fsid, Status, Verifier};
use wire::native::{DataHandle, Failure, Rights};
use xdr::Xdr;

/// How often a request is tried for which the iod has no descriptors or memory at the moment, and the pause between.
/// A client that is told to come later does so after 15 seconds, whatever it was about.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// How often bytes are read again because the object changed while the mgr said how long the file is.
const AGAIN: u32 = 4;

/// The objects of an iod.
pub(crate) struct Objects {
    served: Arc<Served>,
}

/// Where a request goes.
struct Target {
    handle: DataHandle,
    /// Offset in the object.
    offset: u64,
}

impl Objects {
    pub(crate) fn new(served: Arc<Served>) -> Self {
        Objects { served }
    }

    /// What they are objects of.
    pub(crate) fn served(&self) -> &Served {
        &self.served
    }

    fn handle(&self, ctx: &Ctx, needed: Rights) -> Result<DataHandle> {
        // PUTFH has verified it.
        let handle = DataHandle::from_bytes(&ctx.handle).map_err(|_| Status::BadHandle)?;
        if handle.rights.contains(needed) { Ok(handle) } else { Err(Status::CapRefused) }
    }

    /// `NotHere` for a range of which another iod has a part: whoever asks for it here does not know how the file is dealt out,
    /// and would take what is next in the object for what is next in the file.
    fn target(&self, ctx: &Ctx, needed: Rights, offset: u64, len: u64) -> Result<Target> {
        let handle = self.handle(ctx, needed)?;
        let distribution = distribution(&handle)?;
        let place = distribution.place(offset);
        let unit = distribution.stripe_unit();
        let here = place.index as u32 == handle.stripe_index;
        let whole = distribution.count() == 1 || len <= unit - offset % unit;
        if here && whole { Ok(Target { handle, offset: place.offset }) } else { Err(Status::NotHere) }
    }

    /// Does file calls where they keep nobody else waiting.
    async fn work<T: Send + 'static>(
        &self,
        work: impl Fn(&Served) -> std::result::Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<T> {
        let work = Arc::new(work);
        for _ in 0..TRIES {
            let (served, now) = (self.served.clone(), work.clone());
            let done = tokio::task::spawn_blocking(move || now(&served)).await.map_err(|_| Status::ServerFault)?;
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

/// The answer to a READ at `offset` of a file of this length, within which its object ends: up to the end of the file there are zeros.
fn ended(got: ObjectBytes, offset: u64, len: u32, length: u64) -> ReadOut {
    let rest = length.saturating_sub(offset);
    let inside = rest.min(len.into()) as usize;
    let data = if inside <= got.data.len() {
        // What is behind the end was cut off, and goes from the object next.
        got.data.slice(..inside)
    } else {
        let mut data = Vec::with_capacity(inside);
        data.extend_from_slice(&got.data);
        data.resize(inside, 0);
        data.into()
    };
    ReadOut { data: data.into(), eof: rest <= len.into() }
}

/// What a client is told. An error of one object must not look like one of the whole iod, which the client would not
/// use any more for any file: it loses the layout of this file instead, and asks the mgr.
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
        self.served.store().fsid()
    }

    fn decode_handle(&self, handle: &[u8]) -> Result<FileId> {
        let handle = DataHandle::from_bytes(&Bytes::copy_from_slice(handle)).map_err(|_| Status::BadHandle)?;
        self.served.check_handle(&handle)?;
        distribution(&handle)?;
        Ok(handle.object)
    }

    async fn read(&self, ctx: &Ctx, offset: u64, len: u32) -> Result<ReadOut> {
        let Target { handle, offset: at } = self.target(ctx, Rights::READ, offset, len.into())?;
        let (object, generation) = (handle.object, handle.generation);
        let bytes = move |served: &Served| served.read_object(object, generation, at, len);
        let mut got = self.work(bytes).await?;
        for _ in 0..AGAIN {
            if got.data.len() >= len as usize {
                // Whether the file ends with them nobody has to be asked for: who wants more asks for it.
                return Ok(ReadOut { data: got.data.into(), eof: false });
            }
            // The object ends here. The file may, too, or go on with a hole: only the mgr knows.
            let Some(length) = self.work(move |served| Ok(served.file_length(object))).await? else { break };
            // When it said so the object ended where it ends before and after.
            if self.work(move |served| served.object_size(object, generation)).await? == got.size {
                if got.size < length.least {
                    tracing::error!(
                        object = object.0,
                        size = got.size,
                        least = length.least,
                        "an object has lost bytes"
                    );
                    break;
                }
                return Ok(ended(got, offset, len, length.file));
            }
            got = self.work(bytes).await?;
        }
        // The client asks the mgr itself, who can ask the iods.
        Err(Status::NotHere)
    }

    async fn write(&self, ctx: &Ctx, offset: u64, data: Bytes, stable: Stability) -> Result<WriteOut> {
        let Target { handle, offset } = self.target(ctx, Rights::WRITE, offset, data.len() as u64)?;
        let (object, grant) = (handle.object, handle.grant);
        let count = data.len() as u32;
        let durable = stable != Stability::Unstable;
        let write =
            move |served: &Served| served.write_object(handle.object, handle.generation, offset, &data, durable);
        let size = self.work(write).await?;
        let mut told = stable;
        if stable == Stability::FileSync {
            // The client tells nobody of what is answered so: the mgr has to know the size and that there is a change.
            let tell = move |served: &Served| Ok(served.tell_written(object, grant, size));
            if !self.work(tell).await? {
                // As much as is true. The client tells the mgr then.
                told = Stability::DataSync;
            }
        }
        Ok(WriteOut { count, stable: told, verifier: self.served.verifier() })
    }

    async fn commit(&self, ctx: &Ctx) -> Result<Verifier> {
        let handle = self.handle(ctx, Rights::WRITE)?;
        self.work(move |served| served.commit_object(handle.object, handle.generation)).await?;
        Ok(self.served.verifier())
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
            // A file as it is: what is stored, zeros, and nothing behind its end.
            let byte = |at: u64| data.get((at - offset) as usize).copied().unwrap_or(0);
            let right: Vec<u8> = (offset..(offset + u64::from(len)).min(length)).map(byte).collect();
            assert_eq!(out.data.to_bytes(), right, "{stored} {len} {length}");
            assert_eq!(out.eof, offset + u64::from(len) >= length, "{stored} {len} {length}");
        }
        let far = ended(ObjectBytes { data: Bytes::new(), size: 0 }, u64::MAX - 10, 10, 5);
        assert!(far.data.is_empty() && far.eof);
    }
}
