//! Inode numbers: how operations allocate them, and from which number on they are free.

use super::Namespace;
use crate::engine::{Batch, Engine, Expect, RequestId, Write};
use crate::ids::BLOCK;
use crate::ops::{self, Plan};
use crate::schema::{self, Delta, NextId, Record};
use crate::tx::Tx;
use std::sync::atomic::Ordering;
use types::{Cred, FileId, Status, Timestamp};

impl<E: Engine> Namespace<E> {
    /// As [`Self::change`], with a new inode number; `made` returns the file of an answer.
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
            // A different number means that the file existed already.
            Ok(answer) => made(answer) != id,
            // The store may have created the file despite the error.
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

    /// Returns the lowest inode number that was never allocated: all numbers below belong to files, or to files to be
    /// created.
    pub fn next_id(&self) -> Result<FileId, Status> {
        self.read(&Cred::root(), |tx| {
            let value = tx.get(schema::NEXT_ID)?.ok_or(Status::Corrupt)?;
            Ok(FileId(NextId::from_value(value)?.0))
        })
    }

    /// Makes every operation that needs a new inode number answer `Delay`, or ends that.
    ///
    /// A copy of a store must not allocate numbers until it is known that no later state of the store has allocated
    /// them.
    pub fn hold_numbers(&self, held: bool) {
        self.shared.held.store(held, Ordering::Relaxed);
    }

    /// Durably skips all numbers below `first`: they are never allocated from now on. Cached numbers are dropped.
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
