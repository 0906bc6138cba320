//! The striped kind: the bytes of a file alternate between objects on one or more iods, in one or more copies.

use super::{Known, Opened, Record, STRIPED, Stored, StoredKind, Stripes, Unusable};
use crate::iods::{Iods, RequestError};
use crate::proxy::{End, Objects, Rebuilt, Suspect, Written};
use crate::striped_records::{new_objects, new_record, next_layout};
use async_trait::async_trait;
use bytes::Bytes;
use layout::gather::{Gather, Run};
use layout::{Place, Policy};
use meta::Layout;
use meta::schema::WriteEnd;
use nfs::fs::Content;
use types::{ByteRange, FileId, Generation, ObjectId, Status, Verifier};
use wire::native::{PullSource, SizeReply};
use xdr::{Segments, Xdr};

#[derive(Debug)]
pub(super) struct Striped;

impl StoredKind for Striped {
    fn number(&self) -> u32 {
        STRIPED
    }

    fn is_for(&self, _: &Policy) -> bool {
        true
    }

    fn make(&self, iods: &Iods, policy: &Policy) -> Result<Bytes, Status> {
        Ok(new_record(iods, policy)?.to_bytes())
    }

    fn open<'a>(&self, iods: &'a Iods, known: Known, record: &Bytes) -> Result<Opened<'a>, Unusable> {
        let record = Record::from_bytes(record).map_err(|e| Unusable::Damaged(e.to_string()))?;
        let objects = Objects::new(iods, known, record).map_err(|e| Unusable::Damaged(e.to_string()))?;
        Ok(Box::new(objects))
    }

    fn objects_of(&self, record: &Bytes, file: FileId) -> Option<(Vec<u16>, Vec<ObjectId>)> {
        let record = Record::from_bytes(record).ok()?;
        let object = record.object(file);
        Some((record.iods, vec![object]))
    }
}

#[async_trait]
impl Stored for Objects<'_> {
    fn known(&self) -> Known {
        self.known
    }

    fn object(&self) -> ObjectId {
        Objects::object(self)
    }

    fn iods(&self) -> &[u16] {
        &self.record.iods
    }

    fn mirrors(&self) -> usize {
        self.record.mirrors as usize
    }

    fn stripes(&self) -> Option<Stripes> {
        let (distribution, unit) = (self.record.distribution, self.record.stripe_unit);
        Some(Stripes { distribution, unit, width: self.distribution.count() })
    }

    fn unit(&self) -> u64 {
        self.distribution.stripe_unit()
    }

    fn window(&self) -> u64 {
        Gather::window_of(&self.distribution)
    }

    fn place(&self, offset: u64) -> Place {
        self.distribution.place(offset)
    }

    fn object_size(&self, size: u64, column: usize) -> u64 {
        self.distribution.object_size(size, column)
    }

    fn file_ranges(&self, column: usize, part: ByteRange) -> Box<dyn Iterator<Item = ByteRange> + Send + '_> {
        Box::new(self.distribution.file_ranges(column, part))
    }

    fn least(&self, index: usize) -> u64 {
        Objects::least(self, index)
    }

    fn lost_in(&self, range: Option<ByteRange>) -> bool {
        Objects::lost_in(self, range)
    }

    fn before_lost(&self, range: ByteRange) -> u64 {
        Objects::before_lost(self, range)
    }

    fn all_up(&self) -> Result<(), Status> {
        Objects::all_up(self)
    }

    fn is_damaged(&self) -> bool {
        Objects::is_damaged(self)
    }

    fn suspects(&self) -> Vec<Suspect> {
        Objects::suspects(self)
    }

    async fn read(&self, range: ByteRange) -> Result<Segments, Status> {
        Objects::read(self, range).await
    }

    async fn write(&self, runs: &[Run], stable: bool) -> Result<Written, Status> {
        Objects::write(self, runs, stable).await
    }

    async fn commit(&self, size: u64) -> Result<(Verifier, bool), Status> {
        Objects::commit(self, size).await
    }

    async fn may_be_cut(&self, size: u64) -> Result<(), Status> {
        Objects::may_be_cut(self, size).await
    }

    async fn truncate(&self, size: u64) -> Result<(), Status> {
        Objects::truncate(self, size).await
    }

    async fn punch(&self, range: ByteRange) -> Result<(), Status> {
        Objects::punch(self, range).await
    }

    async fn reserve(&self, range: ByteRange) -> Result<(), Status> {
        Objects::reserve(self, range).await
    }

    async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status> {
        Objects::seek(self, offset, content).await
    }

    async fn end(&self) -> End {
        Objects::end(self).await
    }

    async fn end_at(&self, number: u16) -> Result<WriteEnd, Status> {
        Objects::end_at(self, number).await
    }

    async fn ask_size(&self, index: usize) -> Result<SizeReply, RequestError> {
        Objects::ask_size(self, index).await
    }

    fn copied_at_once(&self, source: &dyn Stored, len: u64) -> u64 {
        Objects::copied_at_once(self, source, len)
    }

    async fn copy(&self, source: &dyn Stored, range: ByteRange, target: u64) -> Result<Option<Written>, Status> {
        Objects::copy(self, source, range, target).await
    }

    async fn to_pull(&self, column: usize, end: u64) -> Option<PullSource> {
        Objects::to_pull(self, column, end).await
    }

    async fn remove(&self) -> Result<(), Status> {
        Objects::remove(self).await
    }

    fn next_layout(&self, iods: &[u16]) -> Result<Layout, Status> {
        next_layout(&self.record, iods)
    }

    async fn move_to(&self, to: &Layout, generation: Generation) -> Result<(), Status> {
        let to = new_objects(self.iods, Known::nothing(self.known.file, generation), to)?;
        Objects::move_to(self, &to).await
    }

    async fn remove_unused(&self) -> Result<(), Status> {
        Objects::remove_unused(self).await
    }

    async fn fence(&self, generation: Generation) -> Result<(), Status> {
        Objects::fence(self, generation).await
    }

    async fn has_lost_copy(&self) -> Result<bool, Status> {
        Objects::has_lost_copy(self).await
    }

    async fn rebuild(&self) -> Result<Vec<Rebuilt>, Status> {
        Objects::rebuild(self).await
    }

    async fn cut_copies(&self, size: u64) -> Result<bool, Status> {
        Objects::cut_copies(self, size).await
    }

    async fn heal(&self, suspects: &[Suspect]) -> Result<u64, Status> {
        Objects::heal(self, suspects).await
    }

    async fn is_damaged_in(&self, suspect: Suspect) -> Result<bool, Status> {
        Objects::is_damaged_in(self, suspect).await
    }
}
