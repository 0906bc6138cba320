//! The registry of stored kinds and layout types: how files lie in objects on iods, and how clients reach the objects.
//!
//! The layout record of a file carries the number of its *stored kind* ([`StoredKind`]). The mgr path, `weir fsck`, the
//! scrub and the deletion of objects use a file through [`Stored`]. A *layout type* ([`LayoutType`]) is what LAYOUTGET
//! grants, and can express some stored kinds. Outside of this module no code compares the numbers of either.

mod files;
mod flexfiles;
mod native;
mod striped;
#[cfg(test)]
mod tests;

use crate::config::KernelLayout;
use crate::devices::{DataServer, Devices};
use crate::iods::{Asked, Iods};
use crate::proxy::{End, Rebuilt, Suspect, Written};
use async_trait::async_trait;
use bytes::Bytes;
use layout::gather::Run;
pub(crate) use layout::kinds::native::Update;
use layout::kinds::native::{KIND as STRIPED, Record};
use layout::{DistributionId, Place, Policy};
use meta::schema::Reach;
use meta::{FileInfo, FileState, Layout};
use net::clock::unix_now;
use nfs::fs::{Content, Ctx};
use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::iter::StepBy;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use types::{ByteRange, FileId, Generation, IodId, ObjectId, Status, Verifier};
use wire::native::{DataHandle, Holder, PullSource, Rights, SizeReply, Striping};
use xdr::{Malformed, Segments, Xdr};

/// Largest number of files for which the mgr remembers that it has logged an unusable record.
const TOLD_MAX: usize = 4096;

/// What the namespace knows of the bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) file: FileId,
    pub(crate) generation: Generation,
    /// Size of the file.
    pub(crate) size: u64,
    /// Up to this offset every byte of the file was written and is on the disk of an iod ([`FileInfo::whole`]).
    pub(crate) whole: u64,
    /// One past the last byte that is known to be on the disk of an iod ([`FileInfo::written`]).
    pub(crate) written: u64,
}

impl Known {
    /// Returns the knowledge about a file of which no byte has to be on an iod.
    pub(crate) fn nothing(file: FileId, generation: Generation) -> Self {
        Known { file, generation, size: 0, whole: 0, written: 0 }
    }
}

impl From<&FileInfo> for Known {
    fn from(info: &FileInfo) -> Self {
        let (file, size) = (info.attrs.id, info.attrs.size);
        Known { file, generation: info.generation, size, whole: info.whole, written: info.written }
    }
}

impl From<&FileState> for Known {
    fn from(state: &FileState) -> Self {
        let FileState { id, generation, size, whole, written, .. } = *state;
        Known { file: id, generation, size, whole, written }
    }
}

/// The arithmetic by which the bytes of a file alternate between its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stripes {
    pub(crate) distribution: DistributionId,
    /// Bytes per stripe unit.
    pub(crate) unit: u64,
    /// Number of objects of one copy.
    pub(crate) width: usize,
}

/// Why the record of a file cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unusable {
    /// No kind has this number.
    Unknown(u32),
    /// The kind cannot read the record.
    Damaged(String),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Unknown(number) => write!(f, "kind {number} is not known"),
            Unusable::Damaged(why) => f.write_str(why),
        }
    }
}

/// A file whose record was opened.
pub(crate) type Opened<'a> = Box<dyn Stored + 'a>;

/// A stored kind: it makes and reads the layout records with its number.
pub(crate) trait StoredKind: Send + Sync + Debug {
    /// Returns the number in layout records.
    fn number(&self) -> u32;

    /// Makes the record of a new file; `Delay` while too few iods are up.
    fn make(&self, iods: &Iods, policy: &Policy) -> Result<Bytes, Status>;

    /// Reads a record, for requests to the objects that it names. Asks no iod.
    fn open<'a>(&self, iods: &'a Iods, known: Known, record: &Bytes) -> Result<Opened<'a>, Unusable>;

    /// Returns the iods that the record of a file names, and the object that each of them has; `None` if it cannot be
    /// read.
    fn objects_of(&self, record: &Bytes, file: FileId) -> Option<(Vec<u16>, ObjectId)>;
}

/// The bytes of one file of a stored kind.
///
/// The objects have indices: those of the first copy, then those of the next. Objects whose indices differ by a
/// multiple of [`Stored::width`] have the same content, and the smallest of these indices is their *column*. In an
/// object, bytes are in file order.
#[async_trait]
pub(crate) trait Stored: Send + Sync + Debug {
    /// Returns what the namespace knows of the file.
    fn known(&self) -> Known;

    /// Returns the object that each iod of the file has.
    fn object(&self) -> ObjectId;

    /// Returns the iods of the objects, by index. No iod has two of them.
    fn iods(&self) -> &[u16];

    /// Returns the number of copies.
    fn mirrors(&self) -> usize;

    /// Returns the stripes of the file; `None` if the file does not consist of stripes.
    fn stripes(&self) -> Option<Stripes>;

    /// Returns how many bytes one iod holds in a row, at least 1.
    fn unit(&self) -> u64;

    /// Returns the length of the window in which small writes are gathered.
    fn window(&self) -> u64;

    /// Returns the column whose objects hold the byte at `offset` of the file, and the byte's offset in these objects.
    fn place(&self, offset: u64) -> Place;

    /// Returns the length of the objects of a column if the file is `size` bytes of data without a hole.
    fn object_size(&self, size: u64, column: usize) -> u64;

    /// Returns the ranges of the file in a range of the objects of a column, in order.
    fn file_ranges(&self, column: usize, part: ByteRange) -> Box<dyn Iterator<Item = ByteRange> + Send + '_>;

    /// Returns the smallest length of an object that has lost no bytes.
    fn least(&self, index: usize) -> u64;

    /// Returns whether an iod that holds bytes of `range` counts as lost; with `None`, any iod of the file.
    fn lost_in(&self, range: Option<ByteRange>) -> bool;

    /// Returns the number of bytes in a range before the first byte that is on a lost iod.
    fn before_lost(&self, range: ByteRange) -> u64;

    /// Returns `Delay` unless every iod of the file is up.
    fn all_up(&self) -> Result<(), Status>;

    /// Returns whether a request met a copy that has lost or damaged bytes.
    fn is_damaged(&self) -> bool;

    /// Returns the damage that requests met inside of objects.
    fn suspects(&self) -> Vec<Suspect>;

    /// Returns the bytes of `range`, all below the size of the file; bytes that no object holds are zeros.
    ///
    /// # Errors
    /// `Lost`: an object lacks bytes that were on its disk, and no other copy has them. The file may also have been
    /// truncated in the meantime.
    async fn read(&self, range: ByteRange) -> Result<Segments, Status>;

    /// Writes runs that are in file order and end below the largest file size. After a failure any part may be written.
    async fn write(&self, runs: &[Run], stable: bool) -> Result<Written, Status>;

    /// Makes all earlier writes to the file durable; the verifier shows whether any were lost. Also returns whether all
    /// objects are as long as a file of `size` bytes requires.
    async fn commit(&self, size: u64) -> Result<(Verifier, bool), Status>;

    /// Checks whether [`Stored::truncate`] would succeed and keep all bytes before `size`; `Lost` if an object has lost
    /// such bytes.
    async fn may_be_cut(&self, size: u64) -> Result<(), Status>;

    /// Truncates every object so that nothing of the file remains at or after `size`, durably. Truncates nothing while
    /// an iod is down (`Delay`).
    async fn truncate(&self, size: u64) -> Result<(), Status>;

    /// Turns a range of the file into a hole, durably; sizes do not change.
    async fn punch(&self, range: ByteRange) -> Result<(), Status>;

    /// Reserves space for a range in the objects, durably; they grow to the end of their part.
    async fn reserve(&self, range: ByteRange) -> Result<(), Status>;

    /// Returns the first position of the file at or after `offset` with this content, whatever the size of the file;
    /// `None` when no data follow. Bytes that no object holds are a hole.
    async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status>;

    /// Returns the end of the file according to its objects, from the iods that answer.
    async fn end(&self) -> End;

    /// Returns how far the object on this iod makes the file reach, and whether it has a hole; 0 if the file has no
    /// object there.
    async fn end_at(&self, number: u16) -> Result<Reach, Status>;

    /// Returns the size and the allocated space of one object, or why its iod does not answer.
    async fn ask_size(&self, index: usize) -> Result<SizeReply, Asked>;

    /// Returns how many bytes one [`Stored::copy`] from `source` takes at most.
    fn copied_at_once(&self, source: &dyn Stored, len: u64) -> u64;

    /// Asks the iods to copy a range of another file to `target`, in all copies, as unstable writes. Returns `None`
    /// when an iod cannot copy at present. Then, and after a failure, any part may be written already.
    async fn copy(&self, source: &dyn Stored, range: ByteRange, target: u64) -> Result<Option<Written>, Status>;

    /// Returns what another iod needs to copy the bytes of a column below `end`; `None` while no reachable object of
    /// the column has them.
    async fn to_pull(&self, column: usize, end: u64) -> Option<PullSource>;

    /// Deletes every object of a deleted file; a missing object counts as deleted. Fails with `Delay` while an iod is
    /// down, after all other iods have deleted their objects.
    async fn remove(&self) -> Result<(), Status>;

    /// Returns the record of the same kind and shape for objects of the next stream on these iods: their numbers, in
    /// the order of the objects. `NoSpc` if the file has no next stream.
    fn next_record(&self, iods: &[u16]) -> Result<Bytes, Status>;

    /// Copies every object to the objects that a record of [`Stored::next_record`] names, durably. Holes stay holes.
    /// The new objects have this generation and do not exist yet. No client may write the file meanwhile.
    ///
    /// # Errors
    /// `Delay` while an iod of the old or the new objects is down; `Lost` if an object has lost bytes that were on
    /// disk; the status of an iod that refuses a part, such as `NoSpc`. Any part of the new objects may exist then.
    async fn move_to(&self, record: &Bytes, generation: Generation) -> Result<(), Status>;

    /// Deletes these objects of an unfinished move; a missing object counts as deleted. The next move may use the same
    /// stream. So the iods keep no tombstones, and an object whose generation has risen since stays. Fails with `Delay`
    /// while an iod is down, after all other iods have deleted their objects.
    async fn remove_unused(&self) -> Result<(), Status>;

    /// Makes the iods refuse capabilities older than `generation`, durably. Fails with `Delay` while an iod is down,
    /// after all other iods refuse them.
    async fn fence(&self, generation: Generation) -> Result<(), Status>;

    /// Returns whether a copy has lost bytes that another copy has; for a file that no client writes.
    async fn has_lost_copy(&self) -> Result<bool, Status>;

    /// Rebuilds every copy that has lost bytes that another copy has. No client may write the file meanwhile.
    ///
    /// # Errors
    /// `Delay` while an iod of the file is down; `Lost` when bytes that were on disk are in no copy: the other copies
    /// have been rebuilt by then.
    async fn rebuild(&self) -> Result<Vec<Rebuilt>, Status>;

    /// Truncates the copies of objects that are longer than a file of `size` bytes requires, if another copy is not;
    /// returns whether there were any. No client may write the file meanwhile.
    async fn cut_copies(&self, size: u64) -> Result<bool, Status>;

    /// Writes damaged blocks of these ranges again from another copy; returns the number of blocks. No client may write
    /// the file meanwhile.
    ///
    /// # Errors
    /// `Delay` while an iod of the file is down; `Lost` when bytes are damaged in every copy.
    async fn heal(&self, suspects: &[Suspect]) -> Result<u64, Status>;

    /// Returns whether any of these bytes are damaged.
    async fn is_damaged_in(&self, suspect: Suspect) -> Result<bool, Status>;

    /// Returns whether any of these objects exists, even if its head cannot be read. `Delay` while an iod is down.
    async fn any_exists(&self) -> Result<bool, Status> {
        for index in 0..self.count() {
            match self.ask_size(index).await {
                Ok(reply) if reply.size == 0 && reply.allocated == 0 => {}
                Ok(_) | Err(Asked::Refused(Status::Corrupt | Status::Fenced, _)) => return Ok(true),
                Err(Asked::Refused(status, _)) => return Err(status),
                Err(Asked::Away) => return Err(Status::Delay),
            }
        }
        Ok(false)
    }

    /// Returns the number of objects.
    fn count(&self) -> usize {
        self.iods().len()
    }

    /// Returns the number of objects of one copy.
    fn width(&self) -> usize {
        self.count() / self.mirrors()
    }

    /// Returns the column of an object.
    fn column(&self, index: usize) -> usize {
        index % self.width()
    }

    /// Returns the objects of a column.
    fn copies(&self, column: usize) -> StepBy<Range<usize>> {
        (column..self.count()).step_by(self.width())
    }

    /// Returns the number of the iod that holds object `index`.
    fn iod(&self, index: usize) -> u16 {
        self.iods()[index]
    }

    /// Returns the index of the object that an iod holds.
    fn index_on(&self, iod: u16) -> Option<usize> {
        self.iods().iter().position(|number| *number == iod)
    }

    /// Returns the smallest length of a copy of a file that no client writes, if the longest copy has `longest` bytes:
    /// the same length, up to the file's size. No client knows bytes that only one copy has to be durable, but a reader
    /// may see them.
    fn least_of_copies(&self, index: usize, longest: u64) -> u64 {
        let reaches = self.object_size(self.known().size, self.column(index));
        self.least(index).max(longest.min(reaches))
    }
}

/// How long the rights of layouts and devices last, in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lifetimes {
    /// The lifetime of a capability, and of a ticket for an iod.
    pub(crate) capability: u32,
    /// The lifetime of the filehandles of data servers.
    pub(crate) data_handle: u32,
}

/// Failures at data servers that a client reports.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) first: Box<dyn Debug + Send>,
    pub(crate) count: usize,
}

/// A layout type: what LAYOUTGET, GETDEVICEINFO, LAYOUTCOMMIT and LAYOUTRETURN carry.
pub(crate) trait LayoutType: Send + Sync + Debug {
    /// Returns the `layouttype4`.
    fn number(&self) -> u32;

    /// Returns whether kernel clients use the type, rather than Weir's own. A kernel does not report bytes that a data
    /// server has made durable at once, and uses the mgr path when it gets no layout.
    fn is_for_kernels(&self) -> bool;

    /// Returns whether an export with this setting offers the type.
    fn is_offered(&self, setting: KernelLayout) -> bool;

    /// Returns whether the type can express a file, in an export with this setting.
    fn expresses(&self, file: &dyn Stored, setting: KernelLayout) -> bool;

    /// Returns the lifetime of the type's rights.
    fn lifetime(&self, lifetimes: Lifetimes) -> u32;

    /// Returns the body of a layout for a file that the type expresses. `NoLayout` while that is impossible: the client
    /// then uses the mgr path.
    fn grant(&self, grant: &Grant<'_>) -> Result<Bytes, Status>;

    /// Returns the status for a body that is larger than the client takes.
    fn too_large(&self) -> Status;

    /// Returns the address body of a device; `NoEnt` for an unknown one.
    fn device(&self, ask: &DeviceAsk<'_>) -> Result<Bytes, Status>;

    /// Decodes the body of a LAYOUTCOMMIT.
    fn update(&self, body: &Bytes) -> Result<Update, Status>;

    /// Decodes the failures in the body of a LAYOUTRETURN.
    fn faults(&self, body: &Bytes) -> Result<Option<Faults>, Malformed>;

    /// Returns whether the mgr recalls the layouts of a file when one of its iods counts as lost, because clients would
    /// keep trying the iod.
    fn is_recalled_when_lost(&self) -> bool;
}

/// A device for which a client asks.
#[derive(Debug)]
pub(crate) struct DeviceAsk<'a> {
    pub(crate) iods: &'a Iods,
    pub(crate) devices: &'a Devices,
    pub(crate) client: u64,
    pub(crate) device: [u8; 16],
    /// When the rights that go with the address end, in Unix seconds.
    pub(crate) expires: u64,
}

/// A layout that is about to be granted.
#[derive(Debug)]
pub(crate) struct Grant<'a> {
    pub(crate) iods: &'a Iods,
    pub(crate) devices: &'a Devices,
    pub(crate) ctx: &'a Ctx,
    pub(crate) file: &'a dyn Stored,
    /// The generation of the capabilities, which was read after the rights were recorded.
    pub(crate) generation: Generation,
    pub(crate) rights: Rights,
    /// Lifetime of the rights, in seconds.
    pub(crate) secs: u32,
    /// Largest body that the client takes, in bytes.
    pub(crate) max_body: usize,
}

impl Grant<'_> {
    /// Returns when the rights of the layout end, in Unix seconds.
    fn expires(&self) -> u64 {
        unix_now() + u64::from(self.secs)
    }

    /// Returns the stripes of a file that the layout type expresses.
    fn stripes(&self) -> Result<Stripes, Status> {
        self.file.stripes().ok_or(Status::NoLayout)
    }

    /// Returns the iods of the file's objects, by object index.
    fn iod_ids(&self) -> Result<Vec<IodId>, Status> {
        self.file.iods().iter().map(|number| Ok(self.iods.registered(*number)?.id)).collect()
    }

    /// Returns the data servers of the file. `NoLayout` while one of its iods is down or serves no NFS: clients then
    /// use the mgr path.
    fn data_servers(&self) -> Result<Vec<DataServer>, Status> {
        self.iods.data_servers(self.file.iods()).ok_or(Status::NoLayout)
    }

    /// Returns a function that signs the filehandle of an object at its data server, and the number of the layout. The
    /// function takes the index of the object, which counts through all copies.
    fn data_handles(&self) -> Result<(impl Fn(usize) -> Bytes, u64), Status> {
        let (cluster, rights) = (self.iods.cluster(), self.rights);
        let object = (self.file.object(), self.generation);
        let iods = self.iod_ids()?;
        let Stripes { unit, width, .. } = self.stripes()?;
        let unit = u32::try_from(unit).map_err(|_| Status::NoLayout)?;
        // Random, so that no mgr has used the number before.
        let grant = getrandom::u64().map_err(|_| Status::ServerFault)?;
        let holder = Holder { grant, session: self.ctx.client, expires: self.expires() };
        let handle = move |index: usize| {
            let striping = Striping { unit, count: width as u32, index: (index % width) as u32 };
            let key = cluster.key.of_iod(iods[index]);
            DataHandle::sign(&key, cluster.fsid, object, rights, striping, holder).to_bytes()
        };
        Ok((handle, grant))
    }
}

/// The stored kinds and layout types that a mgr knows.
#[derive(Debug)]
pub(crate) struct Kinds {
    /// New files are of the first kind.
    stored: Vec<Box<dyn StoredKind>>,
    layout_types: Vec<Box<dyn LayoutType>>,
    /// Files whose unusable record is already logged.
    told: Mutex<BTreeSet<FileId>>,
}

impl Default for Kinds {
    /// Returns all kinds of this version.
    fn default() -> Self {
        Kinds {
            stored: vec![Box::new(striped::Striped)],
            layout_types: vec![Box::new(native::Native), Box::new(files::Files), Box::new(flexfiles::Flexfiles)],
            told: Mutex::default(),
        }
    }
}

impl Kinds {
    fn stored(&self, number: u32) -> Option<&dyn StoredKind> {
        self.stored.iter().find(|kind| kind.number() == number).map(|kind| &**kind)
    }

    /// Makes the layout record of a new file; `Delay` while too few iods are up.
    pub(crate) fn make(&self, iods: &Iods, policy: &Policy) -> Result<Layout, Status> {
        let kind = self.stored.first().ok_or(Status::ServerFault)?;
        Ok(Layout { kind: kind.number(), body: kind.make(iods, policy)? })
    }

    /// Opens the objects that a layout record of the namespace names.
    pub(crate) fn try_open<'a>(&self, iods: &'a Iods, known: Known, layout: &Layout) -> Result<Opened<'a>, Unusable> {
        let kind = self.stored(layout.kind).ok_or(Unusable::Unknown(layout.kind))?;
        kind.open(iods, known, &layout.body)
    }

    /// As [`Kinds::try_open`]; `Corrupt` if the record cannot be used, which is logged once per file.
    pub(crate) fn open<'a>(&self, iods: &'a Iods, known: Known, layout: &Layout) -> Result<Opened<'a>, Status> {
        self.try_open(iods, known, layout).map_err(|why| {
            if self.is_new(known.file) {
                tracing::error!(file = known.file.0, "the layout record of a file cannot be used: {why}");
            }
            Status::Corrupt
        })
    }

    /// Returns whether this mgr has not logged yet that the record of the file is unusable; counts it as logged.
    fn is_new(&self, file: FileId) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        told.insert(file)
    }

    /// Returns the object that the layout record of a file names on this iod.
    pub(crate) fn object_on(&self, layout: &Layout, file: FileId, iod: u16) -> Option<ObjectId> {
        let (iods, object) = self.stored(layout.kind)?.objects_of(&layout.body, file)?;
        iods.contains(&iod).then_some(object)
    }

    /// Returns the layout type with this number; `NoLayout` if there is none.
    pub(crate) fn layout_type(&self, number: u32) -> Result<&dyn LayoutType, Status> {
        let found = self.layout_types.iter().find(|layout| layout.number() == number);
        found.map(|layout| &**layout).ok_or(Status::NoLayout)
    }

    /// Returns the numbers of all layout types.
    pub(crate) fn layout_types(&self) -> Vec<u32> {
        self.layout_types.iter().map(|layout| layout.number()).collect()
    }

    /// Returns the numbers of the layout types that an export with this setting offers. Each client takes the type that
    /// it knows. Kernel clients do not know the native type, and would take any of the other types.
    pub(crate) fn offered(&self, setting: KernelLayout) -> Vec<u32> {
        let offered = self.layout_types.iter().filter(|layout| layout.is_offered(setting));
        offered.map(|layout| layout.number()).collect()
    }

    /// Returns the layout type that an export with this setting offers to kernel clients.
    pub(crate) fn offered_to_kernels(&self, setting: KernelLayout) -> Option<u32> {
        let mut types = self.layout_types.iter();
        types.find(|layout| layout.is_for_kernels() && layout.is_offered(setting)).map(|layout| layout.number())
    }
}
