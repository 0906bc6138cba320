//! The function-call interface to the objects of an iod, for another service in the same process (`ds`).

use std::time::Duration;

use bytes::Bytes;
use types::{Generation, Machine, ObjectId, Status, Verifier};
use wire::native::{DataHandle, Extent, Failure, FileLength, PieceKind, WriteExtent};

use super::volume::Volume;
use super::write_reports::Written;
use crate::counters::Counters;
use crate::store::ReadPlan;

/// Time limit for a write report to reach the mgr.
const TELL_WAIT: Duration = Duration::from_secs(10);

/// Time limit for the mgr to report a file length. After this time the reader is sent to the mgr instead.
const LENGTH_WAIT: Duration = Duration::from_secs(2);

/// The content of a range of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectBytes {
    /// The bytes up to the end of the range or of the object; holes are zeros.
    pub data: Bytes,
    /// The size of the object.
    pub size: u64,
}

impl Volume {
    /// Checks that a filehandle is genuine, for this volume, and still valid.
    ///
    /// # Errors
    /// `BadHandle` if it is not genuine or not for this volume; `Fenced` if it is no longer valid.
    pub fn check_handle(&self, handle: &DataHandle) -> Result<(), Status> {
        self.judge.data_handle(handle)
    }

    /// Returns the write verifier of this run.
    pub fn verifier(&self) -> Verifier {
        self.store.verifier()
    }

    /// Reads `len` bytes, at most one payload, at `offset` of an object; blocks for the disk.
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

    /// Writes `data` at `offset` of an object, durably if `stable`; returns the size of the object. Blocks for the
    /// disk.
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

    /// Reports to the mgr that an object was written under the layout `grant` and now has this size. Waits for the
    /// answer of the mgr for up to ten seconds; returns whether the mgr has confirmed the report.
    pub fn tell_written(&self, object: ObjectId, grant: u64, size: u64) -> bool {
        self.news.tell(object, Written { grant, size }, TELL_WAIT)
    }

    /// Returns the size of an object; blocks for the disk.
    ///
    /// # Errors
    /// The errors of SIZE: `Fenced`, `Corrupt`, `Io`.
    pub fn object_size(&self, object: ObjectId, generation: Generation) -> Result<u64, Failure> {
        self.store.check_confirmed()?;
        Ok(self.store.object(object).size(&self.store, generation)?.0)
    }

    /// Asks the mgr for the length of the object's file and the length that the object must have, at some moment during
    /// this call. Returns `None` if the mgr does not know, or does not answer within two seconds. Blocks for the mgr.
    pub fn file_length(&self, object: ObjectId) -> Option<FileLength> {
        self.lengths.ask(object, LENGTH_WAIT)
    }

    /// Makes all written data of an object durable; blocks for the disk.
    ///
    /// # Errors
    /// The errors of COMMIT: `Fenced`, `Corrupt`, `Io`.
    pub fn commit_object(&self, object: ObjectId, generation: Generation) -> Result<(), Failure> {
        self.store.check_confirmed()?;
        self.store.object(object).commit(&self.store, generation).map(drop)
    }
}
