//! The transaction of one operation: reads through a view, and collects preconditions and changes in a batch.

use crate::ChangeInfo;
use crate::engine::{Batch, Expect, Key, Merged, Survey, Value, View, Walk, Write};
use crate::schema::{self, Body, CookieKey, Core, Delta, Dentry, Intent, Record, Tail, TailDelta};
use bytes::Bytes;
use types::{Attrs, Cred, FileId, FileKind, Generation, Status, Timestamp, limits};

/// The transaction of one operation: its view, the credentials of its caller, and the batch that it builds.
pub(crate) struct Tx<'a> {
    view: &'a dyn View,
    cookies: &'a CookieKey,
    /// Value that the transaction adds to each stored change attribute before it returns the attribute, so that change
    /// attributes grow with each start of the mgr.
    since: u64,
    /// Credentials of the calling user.
    pub(crate) cred: &'a Cred,
    /// The current time, which the operation uses for timestamps.
    pub(crate) now: Timestamp,
    batch: Batch,
    merges: usize,
}

/// How the batch changes the tail record of an inode ([`Tail`]). [`Settled::change`] computes from this value the
/// change attributes that the operation returns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Touch {
    /// The batch does not change the tail record of an inode (size, times, change attribute). The variant contains the
    /// current change attribute of the inode.
    None(u64),
    /// A merge operation changes the tail record (size, times, change attribute). The variant contains the index of
    /// this operation among the merge operations of the batch.
    Merge(usize),
}

/// A callback that receives a key and its value. An error ends the scan.
pub(crate) type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<Walk, Status> + 'v;

/// The results of the merge operations of a committed batch. From these results, the operation that built the batch
/// computes its own result.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) merged: Vec<Merged>,
    /// Value that the operation adds to each stored change attribute before it returns the attribute, so that change
    /// attributes grow with each start of the mgr.
    pub(crate) since: u64,
}

impl Settled {
    fn tails(&self, index: usize) -> Result<(Tail, Tail), Status> {
        let (before, after) = self.merged.get(index).ok_or(Status::ServerFault)?;
        let before = before.clone().ok_or(Status::ServerFault)?;
        let told = |value| Tail::from_value(value).map(|tail| tail.told(self.since));
        Ok((told(before)?, told(after.clone())?))
    }

    /// Returns the change attribute of a directory or file before and after the batch.
    pub(crate) fn change(&self, touch: Touch) -> Result<ChangeInfo, Status> {
        Ok(match touch {
            Touch::None(change) => ChangeInfo { before: change, after: change, atomic: true },
            Touch::Merge(index) => {
                let (before, after) = self.tails(index)?;
                ChangeInfo { before: before.change, after: after.change, atomic: true }
            }
        })
    }

    /// Returns the attributes of the inode `id` before and after the batch. `cores` are the core records (type, owner,
    /// layout) of the inode before and after the batch. `index` is the index of the merge operation that changed the
    /// tail record (size, times) of the inode.
    pub(crate) fn attrs(&self, id: FileId, cores: (&Core, &Core), index: usize) -> Result<(Attrs, Attrs), Status> {
        let (before, after) = self.tails(index)?;
        Ok((cores.0.attrs(id, &before), cores.1.attrs(id, &after)))
    }
}

/// A directory entry that a lookup found, with its key and stored value.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) entry: Dentry,
    pub(crate) key: Key,
    value: Value,
}

/// The hash bucket of a name in a directory: the entry with this name, if it exists, and all entries whose names have
/// the same hash.
pub(crate) struct Place {
    pub(crate) found: Option<Found>,
    alike: Vec<(Key, Value)>,
    first: u64,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(
        view: &'a dyn View,
        (cookies, since): (&'a CookieKey, u64),
        cred: &'a Cred,
        now: Timestamp,
    ) -> Self {
        Tx { view, cookies, since, cred, now, batch: Batch { durable: true, ..Batch::default() }, merges: 0 }
    }

    /// Returns the batch that the operation has built.
    pub(crate) fn into_batch(self) -> Batch {
        self.batch
    }

    /// Marks the batch as one that even a nearly full store accepts, because the batch eventually frees space, or
    /// because a removal or a recovery needs the batch.
    pub(crate) fn frees(&mut self) {
        self.batch.frees = true;
    }

    /// Marks the batch as not durable: the store reports the outcome of the batch without a flush.
    pub(crate) fn not_durable(&mut self) {
        self.batch.durable = false;
    }

    fn record<R: Record>(&self, key: &[u8]) -> Result<Option<R>, Status> {
        self.view.get(key)?.map(R::from_value).transpose()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Value>, Status> {
        Ok(self.view.get(key)?)
    }

    /// Passes up to `limit` records of the key range to `visit`. Returns whether the scan reached the end of the range.
    pub(crate) fn scan(&self, from: &[u8], to: &[u8], limit: usize, visit: &mut Visit<'_>) -> Result<bool, Status> {
        let mut result = Ok(());
        let rest = self.view.scan(from..to, limit, &mut |key, value| match visit(key, value) {
            Ok(walk) => walk,
            Err(status) => {
                result = Err(status);
                Walk::Stop
            }
        })?;
        result.map(|()| rest.is_none())
    }

    /// Passes records to `visit` as [`Self::scan`] does, but also damaged records, with `None` as value.
    pub(crate) fn survey(&self, from: &[u8], to: &[u8], limit: usize, visit: &mut Survey<'_>) -> Result<bool, Status> {
        Ok(self.view.survey(from..to, limit, visit)?.is_none())
    }

    /// Returns the range of cookies that a directory entry with this name may have.
    pub(crate) fn bucket(&self, name: &[u8]) -> std::ops::Range<u64> {
        schema::bucket(self.cookies, name)
    }

    /// Returns the core record of an inode (type, owner, layout), without a precondition: a concurrent batch may change
    /// the record. `Stale` if the inode does not exist.
    pub(crate) fn core(&self, id: FileId) -> Result<Core, Status> {
        self.record(&schema::core_key(id))?.ok_or(Status::Stale)
    }

    /// Returns the core record of an inode (type, owner, layout) and adds a precondition that this record is unchanged
    /// at the commit. `Stale` if the inode does not exist.
    pub(crate) fn rely_on(&mut self, id: FileId) -> Result<Core, Status> {
        let key = schema::core_key(id);
        let value = self.view.get(&key)?.ok_or(Status::Stale)?;
        self.batch.expects.push(Expect::Reads(key, value.clone()));
        Core::from_value(value)
    }

    /// Returns the core record of a directory, as [`Self::rely_on`] does; `NotDir` if the inode is not a directory.
    pub(crate) fn rely_on_dir(&mut self, id: FileId) -> Result<Core, Status> {
        let core = self.rely_on(id)?;
        if core.kind() == FileKind::Directory { Ok(core) } else { Err(Status::NotDir) }
    }

    /// Returns the tail record of an inode (size, times, change attribute), with the change attribute that clients see.
    pub(crate) fn tail(&self, id: FileId) -> Result<Tail, Status> {
        let tail: Tail = self.record(&schema::tail_key(id))?.ok_or(Status::Corrupt)?;
        Ok(self.told(tail))
    }

    /// Returns a stored tail record (size, times, change attribute) with the change attribute that clients see.
    pub(crate) fn told(&self, tail: Tail) -> Tail {
        tail.told(self.since)
    }

    /// Returns the tail record of an inode (size, times, change attribute), with the change attribute that clients see.
    /// Adds a precondition that this record is unchanged at the commit.
    pub(crate) fn rely_on_tail(&mut self, id: FileId) -> Result<Tail, Status> {
        let key = schema::tail_key(id);
        let value = self.view.get(&key)?.ok_or(Status::Corrupt)?;
        self.batch.expects.push(Expect::Reads(key, value.clone()));
        Ok(self.told(Tail::from_value(value)?))
    }

    /// Returns the attributes of an inode.
    pub(crate) fn attrs(&self, id: FileId) -> Result<Attrs, Status> {
        Ok(self.core(id)?.attrs(id, &self.tail(id)?))
    }

    /// Looks up `name` in a directory and returns its hash bucket.
    pub(crate) fn place(&self, dir: FileId, name: &[u8]) -> Result<Place, Status> {
        let bucket = schema::bucket(self.cookies, name);
        let (from, to) = (schema::dentry_key(dir, bucket.start), schema::dentry_key(dir, bucket.end));
        let mut place = Place { found: None, alike: Vec::new(), first: bucket.start };
        self.scan(&from, &to, usize::MAX, &mut |key, value| {
            let value = Bytes::copy_from_slice(value);
            let entry = Dentry::from_value(value.clone())?;
            if entry.name == name {
                place.found = Some(Found { entry, key: key.to_vec(), value: value.clone() });
            }
            place.alike.push((key.to_vec(), value));
            Ok(Walk::On)
        })?;
        Ok(place)
    }

    /// Adds a precondition that the directory entry is unchanged at the commit.
    pub(crate) fn rely_on_found(&mut self, found: &Found) {
        self.batch.expects.push(Expect::Reads(found.key.clone(), found.value.clone()));
    }

    /// Looks up `name` in a directory and returns the entry; `NoEnt` if there is none. Adds a precondition that the
    /// entry is unchanged at the commit.
    pub(crate) fn rely_on_name(&mut self, dir: FileId, name: &[u8]) -> Result<Found, Status> {
        let found = self.place(dir, name)?.found.ok_or(Status::NoEnt)?;
        self.rely_on_found(&found);
        Ok(found)
    }

    /// Adds a directory entry whose name is not yet in its hash bucket `place`. Adds preconditions that the name still
    /// does not exist at the commit.
    pub(crate) fn add_name(&mut self, dir: FileId, place: &Place, entry: &Dentry) -> Result<(), Status> {
        let key_of = |index| schema::dentry_key(dir, place.first + index);
        let taken = |key: &Key| place.alike.iter().any(|(taken, _)| taken == key);
        let key = (0..256).map(key_of).find(|key| !taken(key)).ok_or(Status::NoSpc)?;
        if place.alike.is_empty() {
            self.batch.expects.push(Expect::NoneIn(key_of(0), key_of(256)));
        } else {
            // Every operation that adds an entry to this hash bucket uses the lowest free index. So a concurrent
            // operation that changes the bucket either uses the index of `key`, or changes an entry that this batch has
            // read. In both cases a precondition of this batch fails.
            let alike = place.alike.iter().map(|(key, value)| Expect::Reads(key.clone(), value.clone()));
            self.batch.expects.extend(alike);
            self.batch.expects.push(Expect::Absent(key.clone()));
        }
        self.put(key, entry.to_value());
        Ok(())
    }

    /// Makes an existing directory entry refer to the inode `child` instead of its current inode.
    pub(crate) fn redirect(&mut self, found: &Found, child: FileId, kind: FileKind) {
        let entry = Dentry { child, kind, name: found.entry.name.clone() };
        self.put(found.key.clone(), entry.to_value());
    }

    pub(crate) fn expect(&mut self, expect: Expect) {
        self.batch.expects.push(expect);
    }

    pub(crate) fn put(&mut self, key: Key, value: Value) {
        self.batch.writes.push((key, Write::Put(value)));
    }

    pub(crate) fn delete(&mut self, key: Key) {
        self.batch.writes.push((key, Write::Delete));
    }

    pub(crate) fn put_core(&mut self, id: FileId, core: &Core) {
        self.put(schema::core_key(id), core.to_value());
    }

    /// Raises the fencing generation in `core`, the core record of a file, which the caller must then write. Adds the
    /// intent to send the new generation to the iods.
    pub(crate) fn raise_generation(&mut self, id: FileId, core: &mut Core) -> Result<Generation, Status> {
        let Body::Regular { generation, .. } = &mut core.body else { return Err(Status::WrongType) };
        let raised = Generation(generation.0.checked_add(1).ok_or(Status::NoSpc)?);
        *generation = raised;
        let told = Intent::Fence(raised);
        self.put(schema::intent_key(id, told.kind()), told.to_value());
        Ok(raised)
    }

    fn merge(&mut self, key: Key, delta: Delta) -> usize {
        self.batch.writes.push((key, Write::Merge(delta.to_bytes())));
        self.merges += 1;
        self.merges - 1
    }

    /// Adds a merge operation that changes the tail record of an inode (size, times, change attribute), without a
    /// precondition on this record. Returns the index of the operation among the batch's merge operations.
    pub(crate) fn change_tail(&mut self, id: FileId, delta: TailDelta) -> usize {
        self.merge(schema::tail_key(id), Delta::Tail(delta))
    }

    /// Sets the change time of an inode to the current time. Returns the index of this merge operation in the batch.
    pub(crate) fn touch(&mut self, id: FileId) -> usize {
        self.change_tail(id, TailDelta { ctime: Some(self.now), ..TailDelta::default() })
    }

    /// Changes the entry count, the subdirectory count and the times of a directory that gains or loses entries.
    pub(crate) fn change_dir(&mut self, dir: FileId, entries: i32, subdirs: i32) -> Touch {
        let size = schema::SizeDelta::Entries(entries);
        let now = Some(self.now);
        let delta = TailDelta { size, subdirs, mtime: now, ctime: now, ..TailDelta::default() };
        Touch::Merge(self.change_tail(dir, delta))
    }

    /// Adds `n` to the inode count; `n` is negative for deleted inodes.
    pub(crate) fn count_files(&mut self, n: i64) {
        self.merge(schema::COUNTS.to_vec(), Delta::Files(n));
    }

    /// Writes the records of a new inode and increments the store's inode count.
    pub(crate) fn put_inode(&mut self, id: FileId, core: &Core, tail: &Tail) {
        self.put_core(id, core);
        self.put(schema::tail_key(id), tail.to_value());
        self.count_files(1);
    }

    /// Deletes the records of an inode, including inline bytes and extended attributes. Every operation that adds an
    /// extended attribute changes the core record of the inode, and the batch has a precondition on this record. So no
    /// concurrent operation can add an attribute.
    pub(crate) fn delete_inode(&mut self, id: FileId, core: &Core) -> Result<(), Status> {
        self.delete(schema::core_key(id));
        self.delete(schema::tail_key(id));
        if matches!(&core.body, Body::Regular { layout: Some(layout), .. } if !layout.is_final()) {
            self.delete(schema::bytes_key(id));
        }
        if core.xattrs.count > 0 {
            let mut keys = Vec::new();
            let (from, to) = (schema::xattr_key(id, b""), schema::xattrs_end(id));
            self.scan(&from, &to, limits::XATTRS_MAX, &mut |key, _| {
                keys.push(key.to_vec());
                Ok(Walk::On)
            })?;
            keys.into_iter().for_each(|key| self.delete(key));
        }
        self.count_files(-1);
        Ok(())
    }

    /// Returns the parent recorded in a directory's core record; `NotDir` for other kinds of inodes.
    pub(crate) fn parent_in(core: &Core) -> Result<FileId, Status> {
        match core.body {
            Body::Directory { parent } => Ok(parent),
            _ => Err(Status::NotDir),
        }
    }
}
