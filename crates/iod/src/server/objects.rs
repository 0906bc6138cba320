//! The function-call interface to the objects of an iod, for the NFS service (`ds`) in the same process.

use std::time::Duration;

use bytes::Bytes;
use types::{Generation, Machine, ObjectId, Status, Verifier};
use wire::native::{DataHandle, Extent, Failure, FileLength, PieceKind, WriteExtent};

use super::volume::Volume;
use super::write_reports::Written;
use crate::counters::Counters;
use crate::store::ReadPlan;

/// Time limit for the mgr to confirm a write report.
const CONFIRM_WAIT: Duration = Duration::from_secs(10);

/// Time limit for the mgr to return the length of a file. After this time the NFS service makes the client read through
/// the mgr.
const LENGTH_WAIT: Duration = Duration::from_secs(2);

/// The bytes that a read of an object returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectBytes {
    /// The bytes up to the end of the requested range or of the object, whichever comes first. Holes are zeros.
    pub data: Bytes,
    /// The size of the object in bytes.
    pub size: u64,
}

impl Volume {
    /// Checks that the mgr signed a filehandle for this volume, and that the handle is still valid.
    ///
    /// # Errors
    /// `BadHandle` if the handle is forged or names another volume; `Fenced` if the handle is no longer valid.
    pub fn check_handle(&self, handle: &DataHandle) -> Result<(), Status> {
        self.judge.data_handle(handle)
    }

    /// Returns the write verifier of the store, which changes each time the store is opened.
    pub fn verifier(&self) -> Verifier {
        self.store.verifier()
    }

    /// Reads `len` bytes at `offset` of an object; `len` is at most one payload. Blocks while the disk reads.
    ///
    /// # Errors
    /// The errors of READ: `Fenced`, `Corrupt`, `Io`, `TooBig`.
    pub fn read_object(
        &self,
        object: ObjectId,
        generation: Generation,
        offset: u64,
        len: u32,
    ) -> Result<ObjectBytes, Failure> {
        if len as usize > types::limits::PAYLOAD_MAX {
            return Err(Status::TooBig.into());
        }
        self.store.check_confirmed()?;
        let mut plan = ReadPlan::default();
        let extents = [Extent { offset, len }];
        let open = self.store.object(object).plan_read(&self.store, generation, &extents, &mut plan)?;
        let inside: u32 =
            plan.pieces.iter().filter(|piece| piece.kind != PieceKind::Beyond).map(|piece| piece.len).sum();
        let mut data = vec![0; inside as usize];
        if let Some(open) = open {
            let mut payload = self.pool.borrow(Machine::UNKNOWN);
            let payload = &mut payload[..plan.data_len as usize];
            open.read(&plan.runs, payload, self.store.counters())?;
            let (mut at, mut rest) = (0, &*payload);
            for piece in plan.pieces.iter().filter(|piece| piece.kind != PieceKind::Beyond) {
                let len = piece.len as usize;
                if piece.kind == PieceKind::Data {
                    let (here, behind) = rest.split_at(len);
                    data[at..at + len].copy_from_slice(here);
                    rest = behind;
                }
                at += len;
            }
        }
        Counters::add(&self.store.counters().bytes_read, plan.data_len);
        Ok(ObjectBytes { data: data.into(), size: plan.size })
    }

    /// Writes `data` at `offset` of an object, and makes the bytes durable if `stable`. Returns the size of the object
    /// after the write. Blocks while the disk writes.
    ///
    /// # Errors
    /// The errors of WRITE: `Fenced`, `NoSpc`, `FBig`, `Corrupt`, `Io`.
    pub fn write_object(
        &self,
        object: ObjectId,
        generation: Generation,
        offset: u64,
        data: &[u8],
        stable: bool,
    ) -> Result<u64, Failure> {
        if data.len() > types::limits::PAYLOAD_MAX {
            return Err(Status::TooBig.into());
        }
        self.store.check_confirmed()?;
        let object = self.store.object(object);
        let extent = WriteExtent { offset, len: data.len() as u32, crc32c: 0 };
        let mut size = object.write(&self.store, generation, (&[extent], 0), [data, &[]])?;
        if stable {
            size = size.max(object.commit(&self.store, generation)?);
        }
        Ok(size)
    }

    /// Reports to the mgr that a client wrote to an object under the layout grant with the number `grant`, and that the
    /// object now has the size `size`. Waits up to ten seconds for the mgr's confirmation; returns whether the mgr has
    /// confirmed the report.
    pub fn tell_written(&self, object: ObjectId, grant: u64, size: u64) -> bool {
        self.write_reports.report(object, Written { grant, size }, CONFIRM_WAIT)
    }

    /// Returns the size of an object in bytes. Blocks while the disk reads.
    ///
    /// # Errors
    /// The errors of SIZE: `Fenced`, `Corrupt`, `Io`.
    pub fn object_size(&self, object: ObjectId, generation: Generation) -> Result<u64, Failure> {
        self.store.check_confirmed()?;
        Ok(self.store.object(object).size(&self.store, generation)?.0)
    }

    /// Asks the mgr for the length of the object's file, and for the minimum size of the object: a smaller object has
    /// lost bytes. The mgr looks up both values during this call. Returns `None` if the mgr does not know the length,
    /// or does not answer within two seconds. Blocks until the answer or this timeout.
    pub fn file_length(&self, object: ObjectId) -> Option<FileLength> {
        self.lengths.ask(object, LENGTH_WAIT)
    }

    /// Makes all earlier writes to an object durable. Blocks while the disk syncs.
    ///
    /// # Errors
    /// The errors of COMMIT: `Fenced`, `Corrupt`, `Io`.
    pub fn commit_object(&self, object: ObjectId, generation: Generation) -> Result<(), Failure> {
        self.store.check_confirmed()?;
        self.store.object(object).commit(&self.store, generation).map(drop)
    }
}
