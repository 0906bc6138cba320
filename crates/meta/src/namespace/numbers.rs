//! Allocation of inode numbers for new files.

use super::Namespace;
use crate::engine::{Batch, Engine, Expect, RequestId, Write};
use crate::ids::BLOCK;
use crate::ops::{self, Plan};
use crate::schema::{self, Delta, NextId, Record};
use crate::tx::Tx;
use std::sync::atomic::Ordering;
use types::{Cred, FileId, Status, Timestamp};

impl<E: Engine> Namespace<E> {
    /// Runs an operation that creates an inode, with a new inode number. `made` extracts the inode number from the
    /// operation's result. If the operation has not used the new number, returns the number to the cache.
    pub(super) async fn make<T>(
        &self,
        cred: &Cred,
        now: Timestamp,
        made: impl Fn(&T) -> FileId,
        op: impl Fn(&mut Tx<'_>, FileId) -> Plan<T>,
    ) -> Result<T, Status> {
        let id = self.new_id().await?;
        let result = self.change(cred, now, |tx| op(tx, id)).await;
        let free = match &result {
            // If the result has a different inode number, the file existed already and the new number is unused.
            Ok(answer) => made(answer) != id,
            // Even if the create returns one of these errors, the store may have created the file. So do not use the
            // number for another file.
            Err(Status::Io | Status::ServerFault | Status::Corrupt) => false,
            Err(_) => true,
        };
        if free {
            self.shared.ids.add(id.0..id.0 + 1);
        }
        result
    }

    async fn new_id(&self) -> Result<FileId, Status> {
        if self.shared.held.load(Ordering::Relaxed) {
            return Err(Status::Delay);
        }
        loop {
            if let Some(id) = self.shared.ids.take() {
                return Ok(id);
            }
            let batch = Batch {
                id: RequestId(self.shared.requests.fetch_add(1, Ordering::Relaxed)),
                writes: vec![(schema::NEXT_ID.to_vec(), Write::Merge(Delta::Ids(BLOCK).to_bytes()))],
                durable: true,
                ..Batch::default()
            };
            let settled = self.outcome(self.shared.engine.submit(batch).await)?.ok_or(Status::Corrupt)?;
            let first = settled.merged.into_iter().next().and_then(|(before, _)| before).ok_or(Status::Corrupt)?;
            let first = NextId::from_value(first)?.0;
            self.shared.ids.add(first..first.checked_add(BLOCK).ok_or(Status::Corrupt)?);
        }
    }

    /// Returns the lowest inode number that the store has never allocated.
    pub fn next_id(&self) -> Result<FileId, Status> {
        self.read(&Cred::root(), |tx| {
            let value = tx.get(schema::NEXT_ID)?.ok_or(Status::Corrupt)?;
            Ok(FileId(NextId::from_value(value)?.0))
        })
    }

    /// Refuses the allocation of inode numbers while `held` is true: operations that need a new number fail with
    /// `Delay`.
    ///
    /// A mgr that runs on a copy of a store, such as a restored dump, must not allocate inode numbers at first. The
    /// original store may have allocated the same numbers to other files after the copy was made.
    pub fn hold_numbers(&self, held: bool) {
        self.shared.held.store(held, Ordering::Relaxed);
    }

    /// Durably raises the next inode number to at least `first`, so that lower numbers are never allocated. Discards
    /// the numbers in the cache.
    pub async fn skip_numbers(&self, now: Timestamp, first: FileId) -> Result<(), Status> {
        self.shared.ids.clear();
        self.change(&Cred::root(), now, |tx| {
            let value = tx.get(schema::NEXT_ID)?.ok_or(Status::Corrupt)?;
            let next = NextId::from_value(value.clone())?;
            if next.0 < first.0 {
                tx.expect(Expect::Reads(schema::NEXT_ID.to_vec(), value));
                tx.put(schema::NEXT_ID.to_vec(), NextId(first.0).to_value());
            }
            ops::known(())
        })
        .await
    }
}
