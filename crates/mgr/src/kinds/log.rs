//! The log kind: a striped base, a data log of each client that writes the file, and an index of the data logs.

use super::{Known, Opened, Stored, StoredKind, Stripes, Unusable};
use crate::iods::{Iods, RequestError};
use crate::proxy::{End, LogFile, Rebuilt, Suspect, Written};
use crate::striped_records::{new_objects, new_record, next_layout};
use async_trait::async_trait;
use bytes::Bytes;
use layout::gather::Run;
use layout::kinds::log::{KIND, Record};
use layout::policy::StoredLayout;
use layout::{Place, Policy};
use meta::Layout;
use meta::schema::WriteEnd;
use nfs::fs::Content;
use types::{ByteRange, FileId, Generation, ObjectId, Status, Verifier};
use wire::native::{PullSource, SizeReply};
use xdr::{Segments, Xdr};

#[derive(Debug)]
pub(super) struct Log;

impl StoredKind for Log {
    fn number(&self) -> u32 {
        KIND
    }

    fn is_for(&self, policy: &Policy) -> bool {
        policy.layout == StoredLayout::Log && policy.mirrors <= 1
    }

    fn make(&self, iods: &Iods, policy: &Policy) -> Result<Bytes, Status> {
        Ok(Record { base: new_record(iods, policy)? }.to_bytes())
    }

    fn open<'a>(&self, iods: &'a Iods, known: Known, record: &Bytes) -> Result<Opened<'a>, Unusable> {
        let record = Record::from_bytes(record).map_err(|e| Unusable::Damaged(e.to_string()))?;
        let file = LogFile::new(iods, known, record).map_err(|e| Unusable::Damaged(e.to_string()))?;
        Ok(Box::new(file))
    }

    fn objects_of(&self, record: &Bytes, file: FileId) -> Option<(Vec<u16>, Vec<ObjectId>)> {
        let Record { base } = Record::from_bytes(record).ok()?;
        let objects = vec![base.object(file), ObjectId::index(file)];
        Some((base.iods, objects))
    }
}

/// The numbered objects of a log file are those of its base.
#[async_trait]
impl Stored for LogFile<'_> {
    fn known(&self) -> Known {
        self.known
    }

    fn object(&self) -> ObjectId {
        self.base.object()
    }

    fn index(&self) -> Option<ObjectId> {
        Some(LogFile::index(self))
    }

    fn iods(&self) -> &[u16] {
        self.base.iods()
    }

    fn mirrors(&self) -> usize {
        1
    }

    fn stripes(&self) -> Option<Stripes> {
        self.base.stripes()
    }

    fn unit(&self) -> u64 {
        self.base.unit()
    }

    fn window(&self) -> u64 {
        self.base.window()
    }

    fn place(&self, offset: u64) -> Place {
        self.base.place(offset)
    }

    fn object_size(&self, size: u64, column: usize) -> u64 {
        self.base.object_size(size, column)
    }

    fn file_ranges(&self, column: usize, part: ByteRange) -> Box<dyn Iterator<Item = ByteRange> + Send + '_> {
        self.base.file_ranges(column, part)
    }

    fn least(&self, index: usize) -> u64 {
        self.base.least(index)
    }

    fn lost_in(&self, _: Option<ByteRange>) -> bool {
        self.is_lost()
    }

    fn before_lost(&self, range: ByteRange) -> u64 {
        if self.is_lost() { 0 } else { range.len }
    }

    fn all_up(&self) -> Result<(), Status> {
        self.base.all_up()
    }

    fn is_damaged(&self) -> bool {
        self.base.is_damaged()
    }

    fn suspects(&self) -> Vec<Suspect> {
        self.base.suspects()
    }

    async fn read(&self, range: ByteRange) -> Result<Segments, Status> {
        LogFile::read(self, range).await
    }

    async fn write(&self, runs: &[Run], stable: bool) -> Result<Written, Status> {
        LogFile::write(self, runs, stable).await
    }

    async fn commit(&self, _: u64) -> Result<(Verifier, bool), Status> {
        // Bytes of the file may be in data logs, so the lengths of the base's objects say nothing about the file.
        Ok((LogFile::commit(self).await?, false))
    }

    async fn may_be_cut(&self, size: u64) -> Result<(), Status> {
        self.base.may_be_cut(size).await
    }

    async fn truncate(&self, size: u64) -> Result<(), Status> {
        LogFile::truncate(self, size).await
    }

    async fn punch(&self, range: ByteRange) -> Result<(), Status> {
        LogFile::punch(self, range).await
    }

    async fn reserve(&self, range: ByteRange) -> Result<(), Status> {
        self.base.reserve(range).await
    }

    async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status> {
        LogFile::seek(self, offset, content).await
    }

    async fn end(&self) -> End {
        LogFile::end(self).await
    }

    async fn end_at(&self, number: u16) -> Result<WriteEnd, Status> {
        self.base.end_at(number).await
    }

    async fn ask_size(&self, index: usize) -> Result<SizeReply, RequestError> {
        self.base.ask_size(index).await
    }

    fn copied_at_once(&self, source: &dyn Stored, len: u64) -> u64 {
        self.base.copied_at_once(source, len)
    }

    async fn copy(&self, source: &dyn Stored, range: ByteRange, target: u64) -> Result<Option<Written>, Status> {
        LogFile::copy(self, source, range, target).await
    }

    async fn to_pull(&self, _: usize, _: u64) -> Option<PullSource> {
        // An object of the base may have outdated bytes, so no iod copies from it: the client reads the bytes.
        None
    }

    async fn remove(&self) -> Result<(), Status> {
        LogFile::remove(self).await
    }

    async fn logs_allocated(&self) -> Result<u64, Status> {
        LogFile::logs_allocated(self).await
    }

    fn next_layout(&self, iods: &[u16]) -> Result<Layout, Status> {
        next_layout(&self.base.record, iods)
    }

    async fn move_to(&self, to: &Layout, generation: Generation) -> Result<(), Status> {
        let to = new_objects(self.base.iods, Known::nothing(self.known.file, generation), to)?;
        LogFile::move_to(self, &to).await
    }

    async fn remove_unused(&self) -> Result<(), Status> {
        // No move makes a log file, so the logs and the index belong to the file itself.
        self.base.remove_unused().await
    }

    async fn fence(&self, generation: Generation) -> Result<(), Status> {
        LogFile::fence(self, generation).await
    }

    async fn has_lost_copy(&self) -> Result<bool, Status> {
        self.base.has_lost_copy().await
    }

    async fn rebuild(&self) -> Result<Vec<Rebuilt>, Status> {
        self.base.rebuild().await
    }

    async fn cut_copies(&self, size: u64) -> Result<bool, Status> {
        self.base.cut_copies(size).await
    }

    async fn heal(&self, suspects: &[Suspect]) -> Result<u64, Status> {
        self.base.heal(suspects).await
    }

    async fn is_damaged_in(&self, suspect: Suspect) -> Result<bool, Status> {
        self.base.is_damaged_in(suspect).await
    }
}
