//! The registry of stored kinds and layout types: how files lie in objects on iods, and how clients reach these
//! objects.
//!
//! The layout record of a file carries the number of its *stored kind* ([`StoredKind`]). The mgr path, `weir fsck`, the
//! scrub and the deletion of objects use a file through [`Stored`]. A *layout type* ([`LayoutType`]) is what LAYOUTGET
//! grants. Each layout type can describe files of some stored kinds. Only this module compares the numbers of stored
//! kinds or layout types.

mod files;
mod flexfiles;
mod log;
mod native;
mod striped;
#[cfg(test)]
mod tests;

use crate::config::KernelLayout;
use crate::devices::{DataServer, Devices};
use crate::iods::{Iods, RequestError};
use crate::proxy::{End, Rebuilt, Suspect, Written};
use async_trait::async_trait;
use bytes::Bytes;
use layout::gather::Run;
pub(crate) use layout::kinds::native::Update;
use layout::kinds::native::{KIND as STRIPED, Record};
use layout::{DistributionId, Place, Policy};
use meta::schema::WriteEnd;
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

/// Largest number of files for which the mgr remembers that it has logged an unusable layout record.
const REPORTED_MAX: usize = 4096;

/// The size of a file, and which of its bytes must be on iods, according to the namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) file: FileId,
    pub(crate) generation: Generation,
    /// Size of the file, in bytes.
    pub(crate) size: u64,
    /// A file length. Every object is known to be durably as long as a file of this length requires
    /// ([`FileInfo::whole`]). The file may have holes.
    pub(crate) whole: u64,
    /// Offset after the last byte that is known to be durable on an iod ([`FileInfo::written`]).
    pub(crate) written: u64,
}

impl Known {
    /// Returns the state of a file of size 0, none of whose bytes must be on an iod.
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

/// The parameters of striping: how consecutive bytes of a file alternate between its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stripes {
    pub(crate) distribution: DistributionId,
    /// Stripe unit, in bytes.
    pub(crate) unit: u64,
    /// Number of objects of one copy of the file.
    pub(crate) width: usize,
}

/// Why the mgr cannot use the layout record of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unusable {
    /// This version has no stored kind with this number.
    Unknown(u32),
    /// The stored kind cannot decode the layout record, for the reason in this text.
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

/// The objects of one file, as a stored kind has decoded them from the layout record of the file.
pub(crate) type Opened<'a> = Box<dyn Stored + 'a>;

/// A stored kind: it makes and decodes the layout records that carry its number.
pub(crate) trait StoredKind: Send + Sync + Debug {
    /// Returns the number of the kind in layout records.
    fn number(&self) -> u32;

    /// Returns whether a new file with this policy can be of this kind.
    fn is_for(&self, policy: &Policy) -> bool;

    /// Makes the layout record of a new file. Fails with `Delay` while too few iods are up.
    fn make(&self, iods: &Iods, policy: &Policy) -> Result<Bytes, Status>;

    /// Decodes a layout record, and returns the objects that the record names, ready for requests to these objects.
    /// Sends no request to an iod.
    fn open<'a>(&self, iods: &'a Iods, known: Known, record: &Bytes) -> Result<Opened<'a>, Unusable>;

    /// Returns the iods that a layout record names, and the objects that each of these iods must fence. Returns `None`
    /// if the record cannot be decoded.
    fn objects_of(&self, record: &Bytes, file: FileId) -> Option<(Vec<u16>, Vec<ObjectId>)>;
}

/// The objects of one file of a stored kind.
///
/// Objects are numbered by index: first the objects of the first copy, then those of the second copy. Objects whose
/// indices differ by a multiple of [`Stored::width`] have the same content. The smallest index of such objects is their
/// *column*. Within an object, bytes are in file order.
#[async_trait]
pub(crate) trait Stored: Send + Sync + Debug {
    /// Returns the size of the file, and which of its bytes must be on iods, according to the namespace.
    fn known(&self) -> Known;

    /// Returns the id of the file's objects: inode number and stream. All iods of the file use the same id.
    fn object(&self) -> ObjectId;

    /// Returns the id of the index of a log file: each iod of the file has a shard of the index, and objects of the
    /// data logs. Returns `None` for a file of any other stored kind.
    fn index(&self) -> Option<ObjectId> {
        None
    }

    /// Returns the number of the iod of each object, by object index. No iod has two objects of the file, except those
    /// of the logs and the index of a log file.
    fn iods(&self) -> &[u16];

    /// Returns the number of copies of the file.
    fn mirrors(&self) -> usize;

    /// Returns the striping parameters of the file; `None` if the file is not striped.
    fn stripes(&self) -> Option<Stripes>;

    /// Returns the number of consecutive bytes of the file on one iod, at least 1.
    fn unit(&self) -> u64;

    /// Returns the length of the gathering windows of the file: the aligned ranges within which the mgr joins small
    /// writes, in bytes.
    fn window(&self) -> u64;

    /// Returns the column whose objects hold the byte at `offset` of the file, and the offset of this byte in these
    /// objects.
    fn place(&self, offset: u64) -> Place;

    /// Returns the length of the objects of a column if the file is `size` bytes long and has no hole.
    fn object_size(&self, size: u64, column: usize) -> u64;

    /// Returns the ranges of the file whose bytes lie in the range `part` of the objects of a column, in file order.
    fn file_ranges(&self, column: usize, part: ByteRange) -> Box<dyn Iterator<Item = ByteRange> + Send + '_>;

    /// Returns the smallest length that an object of the file has if the object has lost no bytes.
    fn least(&self, index: usize) -> u64;

    /// Returns whether an iod that holds bytes of `range` is lost. With `None`, any iod of the file counts.
    fn lost_in(&self, range: Option<ByteRange>) -> bool;

    /// Returns the number of bytes in `range` before the first byte that is on a lost iod.
    fn before_lost(&self, range: ByteRange) -> u64;

    /// Fails with `Delay` unless every iod of the file is up.
    fn all_up(&self) -> Result<(), Status>;

    /// Returns whether a request through this [`Stored`] has found a copy with lost or damaged bytes.
    fn is_damaged(&self) -> bool;

    /// Returns the damaged ranges of objects that requests through this [`Stored`] have found.
    fn suspects(&self) -> Vec<Suspect>;

    /// Reads `range`, which must end within the size of the file. Bytes that no object holds are zeros.
    ///
    /// # Errors
    /// `Lost`: an object lacks bytes that were on its disk, and no other copy has them. A concurrent truncation of the
    /// file may also cause this error.
    async fn read(&self, range: ByteRange) -> Result<Segments, Status>;

    /// Writes the byte ranges `runs`, which are in file order and end below the largest file size. After a failure, any
    /// part of the bytes may be written.
    async fn write(&self, runs: &[Run], stable: bool) -> Result<Written, Status>;

    /// Makes all earlier writes to the file durable. Returns a verifier that changes if any of these writes were lost.
    /// Also returns whether all objects are as long as a file of `size` bytes requires.
    async fn commit(&self, size: u64) -> Result<(Verifier, bool), Status>;

    /// Checks whether [`Stored::truncate`] can succeed and keep all bytes before `size`. Fails with `Lost` if an object
    /// has lost bytes before `size`.
    async fn may_be_cut(&self, size: u64) -> Result<(), Status>;

    /// Truncates every object durably, so that no byte of the file at or after `size` remains. Truncates no object
    /// while an iod is down (`Delay`).
    async fn truncate(&self, size: u64) -> Result<(), Status>;

    /// Turns a range of the file into a hole, durably. The size of the file does not change.
    async fn punch(&self, range: ByteRange) -> Result<(), Status>;

    /// Reserves space for a range of the file in all objects, durably. Each object grows to the end of the space that
    /// is reserved in it.
    async fn reserve(&self, range: ByteRange) -> Result<(), Status>;

    /// Returns the first offset of the file at or after `offset` that has the requested `content` (data or a hole),
    /// whatever the size of the file. Bytes that no object holds are a hole. For data, returns `None` if the objects
    /// have no data at or after `offset`. A hole that the function returns may start after the end of the file.
    async fn seek(&self, offset: u64, content: Content) -> Result<Option<u64>, Status>;

    /// Returns the end of the file according to its objects on the iods that reply.
    async fn end(&self) -> End;

    /// Returns the end of the file according to the object on the iod `number`, and whether this object has a hole. The
    /// end is 0 if this iod has no object of the file.
    async fn end_at(&self, number: u16) -> Result<WriteEnd, Status>;

    /// Queries the iod of one object for the size and the allocated space of the object. On failure, returns why the
    /// iod does not reply.
    async fn ask_size(&self, index: usize) -> Result<SizeReply, RequestError>;

    /// Returns the largest number of bytes that one call of [`Stored::copy`] from `source` may copy.
    fn copied_at_once(&self, source: &dyn Stored, len: u64) -> u64;

    /// Makes the iods copy a range of another file to the offset `target`, in all copies, as unstable writes. Returns
    /// `None` if an iod cannot copy now. After `None` or a failure, any part of the bytes may be written.
    async fn copy(&self, source: &dyn Stored, range: ByteRange, target: u64) -> Result<Option<Written>, Status>;

    /// Returns the capability and addresses with which another iod can copy bytes below `end` from an object of a
    /// column (the copies of one object). Returns `None` if no reachable object of the column has these bytes.
    async fn to_pull(&self, column: usize, end: u64) -> Option<PullSource>;

    /// Deletes every object of a deleted file. A missing object counts as deleted. While an iod is down, deletes the
    /// objects on the other iods and fails with `Delay`.
    async fn remove(&self) -> Result<(), Status>;

    /// Returns the space that the data logs and the index of a log file occupy on their iods, in bytes; 0 for a file of
    /// any other stored kind.
    async fn logs_allocated(&self) -> Result<u64, Status> {
        Ok(0)
    }

    /// Returns the layout for objects of the next stream on the iods `iods`, with the same width and number of copies.
    /// `iods` are the iod numbers in the order of the objects. The layout has the same stored kind, except that the
    /// next layout of a log file is striped. Fails with `NoSpc` if the file has no next stream.
    fn next_layout(&self, iods: &[u16]) -> Result<Layout, Status>;

    /// Copies the file to the objects that a layout of [`Stored::next_layout`] names, durably. Holes stay holes.
    /// The new objects get the generation `generation`, and must not exist yet. No client may write the file during the
    /// copy.
    ///
    /// # Errors
    /// `Delay` while an iod of the old or the new objects is down. `Lost` if an object has lost bytes that were on
    /// disk. The status of an iod that refuses a request, such as `NoSpc`. After an error, any part of the new objects
    /// may exist.
    async fn move_to(&self, to: &Layout, generation: Generation) -> Result<(), Status>;

    /// Deletes the objects of an unfinished move. A missing object counts as deleted. The next move may use the same
    /// stream, so the iods keep no tombstones. An object stays if its generation is newer than that in the record of
    /// the unused objects. While an iod is down, deletes the objects on the other iods and fails with `Delay`.
    async fn remove_unused(&self) -> Result<(), Status>;

    /// Makes the iods refuse capabilities older than `generation`, durably. While an iod is down, sends the fence to
    /// the other iods and fails with `Delay`.
    async fn fence(&self, generation: Generation) -> Result<(), Status>;

    /// Returns whether a copy has lost bytes that another copy has. No client may write the file during the check.
    async fn has_lost_copy(&self) -> Result<bool, Status>;

    /// Rebuilds every copy that has lost bytes, if another copy has them. No client may write the file during the
    /// rebuild.
    ///
    /// # Errors
    /// `Delay` while an iod of the file is down. `Lost` if all copies of an object have lost the same durable bytes;
    /// all other bytes are rebuilt then.
    async fn rebuild(&self) -> Result<Vec<Rebuilt>, Status>;

    /// If one copy of an object is longer than a file of `size` bytes requires and another copy is not, truncates the
    /// longer copy. Returns whether it has truncated any copy. No client may write the file during this call.
    async fn cut_copies(&self, size: u64) -> Result<bool, Status>;

    /// Overwrites the damaged blocks in these ranges with the bytes of another copy. Returns the number of written
    /// blocks. No client may write the file during the repair.
    ///
    /// # Errors
    /// `Delay` while an iod of the file is down. `Lost` if bytes are damaged in every copy.
    async fn heal(&self, suspects: &[Suspect]) -> Result<u64, Status>;

    /// Asks the iod of an object whether any bytes in this range of the object are damaged.
    async fn is_damaged_in(&self, suspect: Suspect) -> Result<bool, Status>;

    /// Returns whether any of the file's objects exists, even one with an unreadable header. Fails with `Delay` while
    /// an iod is down.
    async fn any_exists(&self) -> Result<bool, Status> {
        for index in 0..self.count() {
            match self.ask_size(index).await {
                Ok(reply) if reply.size == 0 && reply.allocated == 0 => {}
                Ok(_) | Err(RequestError::Refused(Status::Corrupt | Status::Fenced, _)) => return Ok(true),
                Err(RequestError::Refused(status, _)) => return Err(status),
                Err(RequestError::Down) => return Err(Status::Delay),
            }
        }
        Ok(false)
    }

    /// Returns the number of objects in all copies together.
    fn count(&self) -> usize {
        self.iods().len()
    }

    /// Returns the number of objects of one copy.
    fn width(&self) -> usize {
        self.count() / self.mirrors()
    }

    /// Returns the column of the object with this index.
    fn column(&self, index: usize) -> usize {
        index % self.width()
    }

    /// Returns the indices of the objects of a column, one for each copy.
    fn copies(&self, column: usize) -> StepBy<Range<usize>> {
        (column..self.count()).step_by(self.width())
    }

    /// Returns the number of the iod that holds the object with this index.
    fn iod(&self, index: usize) -> u16 {
        self.iods()[index]
    }

    /// Returns the index of the object that an iod holds; `None` if the iod holds no object of the file.
    fn index_on(&self, iod: u16) -> Option<usize> {
        self.iods().iter().position(|number| *number == iod)
    }

    /// Returns the smallest length that a copy of the object must have, if the longest copy has `longest` bytes and no
    /// client writes the file. Up to the size of the file, each copy must be as long as the longest one: a client may
    /// have read bytes that only the longest copy has, even if these bytes are not known to be durable.
    fn least_of_copies(&self, index: usize, longest: u64) -> u64 {
        let reaches = self.object_size(self.known().size, self.column(index));
        self.least(index).max(longest.min(reaches))
    }
}

/// Lifetimes of the rights that layouts and device addresses contain, in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lifetimes {
    /// Lifetime of a capability, and of a ticket for an iod.
    pub(crate) capability: u32,
    /// Lifetime of a data server's filehandle.
    pub(crate) data_handle: u32,
}

/// The failures at data servers that a client reports in a LAYOUTRETURN.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) first: Box<dyn Debug + Send>,
    pub(crate) count: usize,
}

/// A layout type: the bodies of LAYOUTGET, GETDEVICEINFO, LAYOUTCOMMIT and LAYOUTRETURN.
pub(crate) trait LayoutType: Send + Sync + Debug {
    /// Returns the `layouttype4` number of the type.
    fn number(&self) -> u32;

    /// Returns whether the type is for kernel clients, and not for Weir's own client. A kernel client sends no
    /// LAYOUTCOMMIT for a WRITE that a data server has made durable at once (FILE_SYNC). Without a layout, a kernel
    /// client uses the mgr path.
    fn is_for_kernels(&self) -> bool;

    /// Returns whether an export with this setting offers the layout type.
    fn is_offered(&self, setting: KernelLayout) -> bool;

    /// Returns whether a layout of this type can describe a file, in an export with this setting.
    fn expresses(&self, file: &dyn Stored, setting: KernelLayout) -> bool;

    /// Returns the lifetime of the rights in layouts of this type, in seconds.
    fn lifetime(&self, lifetimes: Lifetimes) -> u32;

    /// Returns the body of a layout for a file that the type can describe. Fails with `NoLayout` while the mgr cannot
    /// grant a layout, for example because an iod is down. The client then uses the mgr path.
    fn grant(&self, grant: &Grant<'_>) -> Result<Bytes, Status>;

    /// Returns the status for a layout body that is larger than the client accepts.
    fn too_large(&self) -> Status;

    /// Returns the address body of a device for GETDEVICEINFO; `NoEnt` if the mgr does not know the device.
    fn device(&self, ask: &DeviceAsk<'_>) -> Result<Bytes, Status>;

    /// Decodes the type-specific body of a LAYOUTCOMMIT.
    fn update(&self, body: &Bytes) -> Result<Update, Status>;

    /// Decodes the failures in the type-specific body of a LAYOUTRETURN.
    fn faults(&self, body: &Bytes) -> Result<Option<Faults>, Malformed>;

    /// Returns whether the mgr recalls layouts of this type when one of the file's iods is lost. Clients of such a type
    /// keep trying the lost iod until the mgr recalls the layout.
    fn is_recalled_when_lost(&self) -> bool;
}

/// The arguments of a GETDEVICEINFO request.
#[derive(Debug)]
pub(crate) struct DeviceAsk<'a> {
    pub(crate) iods: &'a Iods,
    pub(crate) devices: &'a Devices,
    pub(crate) client: u64,
    pub(crate) device: [u8; 16],
    /// When the rights that come with the device address expire, in Unix seconds.
    pub(crate) expires: u64,
}

/// The arguments for making the body of a layout.
#[derive(Debug)]
pub(crate) struct Grant<'a> {
    pub(crate) iods: &'a Iods,
    pub(crate) devices: &'a Devices,
    pub(crate) ctx: &'a Ctx,
    pub(crate) file: &'a dyn Stored,
    /// The generation of the file in the capabilities. The mgr reads the generation after it has recorded the rights,
    /// so that a later fence ends these rights.
    pub(crate) generation: Generation,
    pub(crate) rights: Rights,
    /// Lifetime of the rights in the layout, in seconds.
    pub(crate) secs: u32,
    /// Largest layout body that the client accepts, in bytes.
    pub(crate) max_body: usize,
}

impl Grant<'_> {
    /// Returns when the rights in the layout expire, in Unix seconds.
    fn expires(&self) -> u64 {
        unix_now() + u64::from(self.secs)
    }

    /// Returns the striping parameters of the file. Fails with `NoLayout` if the file is not striped.
    fn stripes(&self) -> Result<Stripes, Status> {
        self.file.stripes().ok_or(Status::NoLayout)
    }

    /// Returns the identities of the iods of the file's objects, by object index.
    fn iod_ids(&self) -> Result<Vec<IodId>, Status> {
        self.file.iods().iter().map(|number| Ok(self.iods.registered(*number)?.id)).collect()
    }

    /// Returns the data servers of the file. Fails with `NoLayout` while one of its iods is down or serves no NFS, and
    /// clients then use the mgr path.
    fn data_servers(&self) -> Result<Vec<DataServer>, Status> {
        self.iods.data_servers(self.file.iods()).ok_or(Status::NoLayout)
    }

    /// Returns a pair: a function that signs the filehandle of an object at its data server, and the random number of
    /// the layout grant. The argument of the function is the index of the object among the objects of all copies.
    fn data_handles(&self) -> Result<(impl Fn(usize) -> Bytes, u64), Status> {
        let (cluster, rights) = (self.iods.cluster(), self.rights);
        let object = (self.file.object(), self.generation);
        let iods = self.iod_ids()?;
        let Stripes { unit, width, .. } = self.stripes()?;
        let unit = u32::try_from(unit).map_err(|_| Status::NoLayout)?;
        // The grant gets a random number, so that no other grant of any mgr has the same number.
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

/// The stored kinds and layout types of this version.
#[derive(Debug)]
pub(crate) struct Kinds {
    /// The stored kinds of this version. A new file is of the first kind in this list that its policy allows.
    stored: Vec<Box<dyn StoredKind>>,
    layout_types: Vec<Box<dyn LayoutType>>,
    /// Files whose unusable layout record the mgr has already logged.
    reported: Mutex<BTreeSet<FileId>>,
}

impl Default for Kinds {
    /// Returns all stored kinds and layout types of this version.
    fn default() -> Self {
        Kinds {
            stored: vec![Box::new(log::Log), Box::new(striped::Striped)],
            layout_types: vec![Box::new(native::Native), Box::new(files::Files), Box::new(flexfiles::Flexfiles)],
            reported: Mutex::default(),
        }
    }
}

impl Kinds {
    fn stored(&self, number: u32) -> Option<&dyn StoredKind> {
        self.stored.iter().find(|kind| kind.number() == number).map(|kind| &**kind)
    }

    /// Makes the layout record of a new file. Fails with `Delay` while too few iods are up.
    pub(crate) fn make(&self, iods: &Iods, policy: &Policy) -> Result<Layout, Status> {
        let kind = self.stored.iter().find(|kind| kind.is_for(policy)).ok_or(Status::ServerFault)?;
        Ok(Layout { kind: kind.number(), body: kind.make(iods, policy)? })
    }

    /// Returns the objects that a layout record of the namespace names.
    pub(crate) fn try_open<'a>(&self, iods: &'a Iods, known: Known, layout: &Layout) -> Result<Opened<'a>, Unusable> {
        let kind = self.stored(layout.kind).ok_or(Unusable::Unknown(layout.kind))?;
        kind.open(iods, known, &layout.body)
    }

    /// Does the same as [`Kinds::try_open`], but fails with `Corrupt` if the mgr cannot use the layout record. Logs the
    /// unusable record once for each file.
    pub(crate) fn open<'a>(&self, iods: &'a Iods, known: Known, layout: &Layout) -> Result<Opened<'a>, Status> {
        self.try_open(iods, known, layout).map_err(|why| {
            if self.is_new(known.file) {
                tracing::error!(file = known.file.0, "the layout record of a file cannot be used: {why}");
            }
            Status::Corrupt
        })
    }

    /// Remembers a file with an unusable layout record. Returns whether the mgr has not logged the record of this file
    /// before.
    fn is_new(&self, file: FileId) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= REPORTED_MAX {
            reported.clear();
        }
        reported.insert(file)
    }

    /// Returns the objects of a file that this iod must fence, according to the layout record of the file.
    pub(crate) fn objects_on(&self, layout: &Layout, file: FileId, iod: u16) -> Vec<ObjectId> {
        let found = self.stored(layout.kind).and_then(|kind| kind.objects_of(&layout.body, file));
        found.filter(|(iods, _)| iods.contains(&iod)).map(|(_, objects)| objects).unwrap_or_default()
    }

    /// Returns the layout type with this number; `NoLayout` if this version has no such type.
    pub(crate) fn layout_type(&self, number: u32) -> Result<&dyn LayoutType, Status> {
        let found = self.layout_types.iter().find(|layout| layout.number() == number);
        found.map(|layout| &**layout).ok_or(Status::NoLayout)
    }

    /// Returns the numbers of all layout types of this version.
    pub(crate) fn layout_types(&self) -> Vec<u32> {
        self.layout_types.iter().map(|layout| layout.number()).collect()
    }

    /// Returns the numbers of the layout types that an export with this setting offers. A client chooses any offered
    /// type that it supports. Kernel clients support all types except the native type, so the setting selects the type
    /// that kernel clients use.
    pub(crate) fn offered(&self, setting: KernelLayout) -> Vec<u32> {
        let offered = self.layout_types.iter().filter(|layout| layout.is_offered(setting));
        offered.map(|layout| layout.number()).collect()
    }

    /// Returns the layout type that an export with this setting offers to kernel clients; `None` if it offers none.
    pub(crate) fn offered_to_kernels(&self, setting: KernelLayout) -> Option<u32> {
        let mut types = self.layout_types.iter();
        types.find(|layout| layout.is_for_kernels() && layout.is_offered(setting)).map(|layout| layout.number())
    }
}
