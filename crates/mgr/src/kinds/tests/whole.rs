//! The whole kind: each file is one object on one iod, in one copy. Only tests have this kind; it shows the minimum
//! that a stored kind must implement.

use crate::iods::{Iods, Link, RequestError};
use crate::kinds::{Known, Opened, Stored, StoredKind, Stripes, Unusable};
use crate::proxy::{End, Rebuilt, Suspect, Written};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use layout::gather::Run;
use layout::{Place, Policy};
use meta::Layout;
use meta::schema::{Holes, WriteEnd};
use nfs::fs::Content;
use std::sync::Arc;
use types::limits::{EXTENTS_MAX, FILE_SIZE_MAX, PAYLOAD_MAX};
use types::{ByteRange, FileId, Generation, ObjectId, Status, Verifier, leaves_hole};
use wire::native::*;
use xdr::{Malformed, Reader, Segments, Writer, Xdr};

/// Number of the whole kind in layout records.
pub(super) const WHOLE: u32 = 0x8000_7768;

#[derive(Debug)]
pub(super) struct Whole;

/// The layout record of the whole kind: the number of the iod, and the stream of the object.
struct Record {
    iod: u16,
    stream: u32,
}

impl Xdr for Record {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.iod.into());
        out.u32(self.stream);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let value = input.u32()?;
        let iod = u16::try_from(value).map_err(|_| Malformed::BadValue { what: "number of an iod", value })?;
        Ok(Record { iod, stream: input.u32()? })
    }
}

impl StoredKind for Whole {
    fn number(&self) -> u32 {
        WHOLE
    }

    fn is_for(&self, _: &Policy) -> bool {
        true
    }

    fn make(&self, iods: &Iods, _: &Policy) -> Result<Bytes, Status> {
        let numbers = iods.for_new_files();
        let first = iods.next_first() as usize;
        let number = numbers.get(first % numbers.len().max(1)).ok_or(Status::Delay)?;
        Ok(Record { iod: *number, stream: 0 }.to_bytes())
    }

    fn open<'a>(&self, iods: &'a Iods, known: Known, record: &Bytes) -> Result<Opened<'a>, Unusable> {
        let Record { iod, stream } = Record::from_bytes(record).map_err(|e| Unusable::Damaged(e.to_string()))?;
        Ok(Box::new(Object { iods, known, on: [iod], stream }))
    }

    fn objects_of(&self, record: &Bytes, file: FileId) -> Option<(Vec<u16>, Vec<ObjectId>)> {
        let Record { iod, stream } = Record::from_bytes(record).ok()?;
        Some((vec![iod], vec![ObjectId::new(file, stream)]))
    }
}

/// The one object of a file of the whole kind.
#[derive(Debug)]
struct Object<'a> {
    iods: &'a Iods,
    known: Known,
    on: [u16; 1],
    stream: u32,
}

impl Object<'_> {
    fn link(&self) -> Result<Arc<Link>, Status> {
        self.iods.link(self.on[0])
    }

    fn cap(&self, link: &Link, rights: Rights) -> Capability {
        link.capability(self.object(), self.known.generation, rights)
    }

    async fn size(&self) -> Result<SizeReply, Status> {
        let link = self.link()?;
        link.call(Procedure::Size, &ObjectArgs { cap: self.cap(&link, Rights::READ) }).await
    }

    /// Reads at most the payload of one request into `out`. Returns the length of the object.
    async fn read_part(&self, range: ByteRange, out: &mut [u8]) -> Result<u64, Status> {
        let link = self.link()?;
        let extents = vec![Extent { offset: range.offset, len: range.len as u32 }];
        let mut reply: ReadReply =
            link.call(Procedure::Read, &ReadArgs { cap: self.cap(&link, Rights::READ), extents }).await?;
        let mut at = 0;
        for piece in &reply.head.pieces {
            let end = at + piece.len as usize;
            if piece.kind == PieceKind::Data {
                out[at..end].copy_from_slice(&reply.data.split_to(piece.len as usize));
            }
            at = end;
        }
        if at == out.len() { Ok(reply.head.size) } else { Err(Status::Delay) }
    }

    async fn write_part(&self, offset: u64, data: Bytes, stable: bool) -> Result<WriteReply, Status> {
        let link = self.link()?;
        let crc32c = if link.hello.checksums { crc32c(&data) } else { 0 };
        let extents = vec![WriteExtent { offset, len: data.len() as u32, crc32c }];
        let head = WriteHead { cap: self.cap(&link, Rights::WRITE), stable, least: self.least(0), extents };
        link.call(Procedure::Write, &WriteArgs { head, data: data.into() }).await
    }

    async fn seek_from(&self, what: SeekWhat, offset: u64) -> Result<Option<u64>, Status> {
        let link = self.link()?;
        let arguments = SeekArgs { cap: self.cap(&link, Rights::READ), offset, what };
        link.call::<SeekReply>(Procedure::Seek, &arguments).await.map(|reply| reply.offset)
    }

    fn verifier(&self, verifier: Verifier) -> Verifier {
        self.iods.verifiers.combine(&[(self.on[0], verifier)])
    }

    fn is_lost(&self) -> bool {
        self.iods.is_lost(self.on[0])
    }
}

#[async_trait]
impl Stored for Object<'_> {
    fn known(&self) -> Known {
        self.known
    }

    fn object(&self) -> ObjectId {
        ObjectId::new(self.known.file, self.stream)
    }

    fn iods(&self) -> &[u16] {
        &self.on
    }

    fn mirrors(&self) -> usize {
        1
    }

    fn stripes(&self) -> Option<Stripes> {
        None
    }

    fn unit(&self) -> u64 {
        FILE_SIZE_MAX
    }

    fn window(&self) -> u64 {
        PAYLOAD_MAX as u64
    }

    fn place(&self, offset: u64) -> Place {
        Place { index: 0, offset, run: u64::MAX - offset }
    }

    fn object_size(&self, size: u64, _: usize) -> u64 {
        size
    }

    fn file_ranges(&self, _: usize, part: ByteRange) -> Box<dyn Iterator<Item = ByteRange> + Send + '_> {
        Box::new(std::iter::once(part))
    }

    fn least(&self, _: usize) -> u64 {
        self.known.whole.max(self.known.written)
    }

    fn lost_in(&self, _: Option<ByteRange>) -> bool {
        self.is_lost()
    }

    fn before_lost(&self, range: ByteRange) -> u64 {
        if self.is_lost() { 0 } else { range.len }
    }

    fn all_up(&self) -> Result<(), Status> {
        self.link().map(drop)
    }

    fn is_damaged(&self) -> bool {
        false
    }

    fn suspects(&self) -> Vec<Suspect> {
        Vec::new()
    }

    async fn read(&self, range: ByteRange) -> Result<Segments, Status> {
        let mut out = BytesMut::zeroed(range.len as usize);
        for (n, part) in out.chunks_mut(PAYLOAD_MAX).enumerate() {
            let range = ByteRange { offset: range.offset + (n * PAYLOAD_MAX) as u64, len: part.len() as u64 };
            if self.read_part(range, part).await? < range.end().min(self.least(0)) {
                return Err(Status::Lost);
            }
        }
        Ok(out.freeze().into())
    }

    async fn write(&self, runs: &[Run], stable: bool) -> Result<Written, Status> {
        let (mut all_stable, mut verifier) = (true, self.iods.verifiers.combine(&[]));
        for run in runs {
            for (n, part) in run.data.chunks(PAYLOAD_MAX).enumerate() {
                let part = run.data.slice_ref(part);
                let reply = self.write_part(run.offset + (n * PAYLOAD_MAX) as u64, part, stable).await?;
                (all_stable, verifier) = (all_stable && reply.stable, self.verifier(reply.verifier));
            }
        }
        Ok(Written { stable: all_stable, verifier })
    }

    async fn commit(&self, size: u64) -> Result<(Verifier, bool), Status> {
        let link = match self.link() {
            Err(Status::Delay) if self.is_lost() => return Ok((self.iods.verifiers.combine(&[]), false)),
            link => link?,
        };
        let arguments = ObjectArgs { cap: self.cap(&link, Rights::WRITE) };
        let reply: CommitReply = link.call(Procedure::Commit, &arguments).await?;
        Ok((self.verifier(reply.verifier), reply.size >= size))
    }

    async fn may_be_cut(&self, size: u64) -> Result<(), Status> {
        if self.size().await?.size < self.least(0).min(size) { Err(Status::Lost) } else { Ok(()) }
    }

    async fn truncate(&self, size: u64) -> Result<(), Status> {
        let link = self.link()?;
        let arguments = TruncateArgs { cap: self.cap(&link, Rights::WRITE), size };
        link.call::<TruncateReply>(Procedure::Truncate, &arguments).await.map(drop)
    }

    async fn punch(&self, range: ByteRange) -> Result<(), Status> {
        let link = self.link()?;
        let arguments = PunchArgs { cap: self.cap(&link, Rights::WRITE), offset: range.offset, len: range.len };
        link.call::<Nothing>(Procedure::Punch, &arguments).await.map(drop)
    }

    async fn reserve(&self, range: ByteRange) -> Result<(), Status> {
        let link = self.link()?;
        let arguments = ReserveArgs { cap: self.cap(&link, Rights::WRITE), offset: range.offset, len: range.len };
        link.call::<Nothing>(Procedure::Reserve, &arguments).await.map(drop)
    }

    async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status> {
        let (what, offset) = match content {
            // Bytes that the namespace records as written count as data, even if the object has lost them.
            Content::Data if offset < self.known.whole => return Ok(Some(offset)),
            Content::Data => (SeekWhat::Data, offset),
            Content::Hole => (SeekWhat::Hole, offset.max(self.known.whole)),
        };
        let found = self.seek_from(what, offset).await?;
        Ok(if what == SeekWhat::Hole { Some(found.unwrap_or(offset)) } else { found })
    }

    async fn end(&self) -> End {
        let size = self.size().await.ok();
        End {
            reached: size.map_or(0, |reply| reply.size.min(FILE_SIZE_MAX)),
            complete: size.is_some(),
            allocated: size.map(|reply| reply.allocated),
            changed: size.is_some_and(|reply| reply.changed),
        }
    }

    async fn end_at(&self, number: u16) -> Result<WriteEnd, Status> {
        if self.index_on(number).is_none() {
            return Ok(0.into());
        }
        let SizeReply { size, allocated, .. } = self.size().await?;
        let holes = if leaves_hole(allocated, size) { Holes::Made } else { Holes::Keep };
        Ok(WriteEnd { end: size.min(FILE_SIZE_MAX), holes, whole: None })
    }

    async fn ask_size(&self, _: usize) -> Result<SizeReply, RequestError> {
        let link = self.link().map_err(|_| RequestError::Down)?;
        link.ask(Procedure::Size, &ObjectArgs { cap: self.cap(&link, Rights::READ) }).await
    }

    fn copied_at_once(&self, source: &dyn Stored, len: u64) -> u64 {
        // Each stripe unit of the source file takes one PULL request of its own, so limit the number of stripe units.
        len.min(PULL_MAX).min(source.unit().saturating_mul(EXTENTS_MAX as u64))
    }

    async fn copy(&self, source: &dyn Stored, range: ByteRange, target: u64) -> Result<Option<Written>, Status> {
        let Ok(link) = self.link() else { return Ok(None) };
        let (mut done, mut verifier) = (0, Verifier::default());
        while done < range.len {
            let at = source.place(range.offset + done);
            let len = at.run.min(range.len - done).min(PULL_MAX);
            let extents = vec![PullExtent { from: at.offset, to: target + done, len: len as u32 }];
            let Some(from) = source.to_pull(at.index, at.offset + len).await else { return Ok(None) };
            let cap = self.cap(&link, Rights::WRITE);
            let pulled = link.pull(&PullArgs { cap, stable: false, source: from, extents }).await?;
            let Some(reply) = pulled else { return Ok(None) };
            (done, verifier) = (done + len, reply.verifier);
        }
        Ok(Some(Written { stable: false, verifier: self.verifier(verifier) }))
    }

    async fn to_pull(&self, _: usize, end: u64) -> Option<PullSource> {
        let (link, size) = (self.link().ok()?, self.size().await.ok()?.size);
        if size < end.min(self.least(0)) {
            return None;
        }
        Some(link.to_pull(self.object(), self.known.generation).await)
    }

    async fn remove(&self) -> Result<(), Status> {
        let link = self.link()?;
        let cap = link.capability(self.object(), GENERATION_GONE, Rights::ADMIN);
        link.call::<Nothing>(Procedure::Remove, &ObjectArgs { cap }).await.map(drop)
    }

    fn next_layout(&self, iods: &[u16]) -> Result<Layout, Status> {
        let stream = self.stream.checked_add(1).ok_or(Status::NoSpc)?;
        let record = Record { iod: iods.first().copied().unwrap_or(self.on[0]), stream };
        Ok(Layout { kind: WHOLE, body: record.to_bytes() })
    }

    async fn move_to(&self, to: &Layout, generation: Generation) -> Result<(), Status> {
        let Record { iod, stream } = Record::from_bytes(&to.body).map_err(|_| Status::Corrupt)?;
        let to = Object { iods: self.iods, known: Known::nothing(self.known.file, generation), on: [iod], stream };
        let size = self.size().await?.size;
        if size < self.least(0) {
            return Err(Status::Lost);
        }
        let mut at = 0;
        while let Some(data) = self.seek_from(SeekWhat::Data, at).await? {
            let end = self.seek_from(SeekWhat::Hole, data).await?.unwrap_or(size);
            let len = (end - data).min(PAYLOAD_MAX as u64);
            let mut bytes = BytesMut::zeroed(len as usize);
            self.read_part(ByteRange { offset: data, len }, &mut bytes).await?;
            to.write_part(data, bytes.freeze(), true).await?;
            at = data + len;
        }
        to.truncate(size).await
    }

    async fn remove_unused(&self) -> Result<(), Status> {
        let link = self.link()?;
        link.call::<Nothing>(Procedure::Remove, &ObjectArgs { cap: self.cap(&link, Rights::ADMIN) }).await.map(drop)
    }

    async fn fence(&self, generation: Generation) -> Result<(), Status> {
        let link = self.link()?;
        let arguments = FenceArgs { cap: self.cap(&link, Rights::ADMIN), generation };
        link.call::<Nothing>(Procedure::Fence, &arguments).await.map(drop)
    }

    async fn has_lost_copy(&self) -> Result<bool, Status> {
        Ok(false)
    }

    async fn rebuild(&self) -> Result<Vec<Rebuilt>, Status> {
        if self.size().await?.size < self.least(0) { Err(Status::Lost) } else { Ok(Vec::new()) }
    }

    async fn cut_copies(&self, _: u64) -> Result<bool, Status> {
        Ok(false)
    }

    async fn heal(&self, suspects: &[Suspect]) -> Result<u64, Status> {
        for suspect in suspects {
            if self.is_damaged_in(*suspect).await? {
                return Err(Status::Lost);
            }
        }
        Ok(0)
    }

    async fn is_damaged_in(&self, suspect: Suspect) -> Result<bool, Status> {
        match self.read(suspect.range).await {
            Ok(_) | Err(Status::Lost) => Ok(false),
            Err(Status::Io) => Ok(true),
            Err(e) => Err(e),
        }
    }
}
