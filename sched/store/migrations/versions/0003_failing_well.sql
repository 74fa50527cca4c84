-- What one job asks for itself, what a run keeps between its attempts, and what was done to it by whom.

alter table rota.job add column policy jsonb;   -- retry, timeout and expires (seconds from due), where the job has its own

alter table rota.run
  add column policy jsonb,
  add column expires_at timestamptz,    -- not to be begun from then on; null: whenever
  add column checkpoint jsonb,          -- the last one of its attempts
  add column progress jsonb,            -- what the running attempt told last
  add column unknown_since timestamptz, -- when a worker of its queue first did not know its handler
  add column cancel_reason text,        -- who asked to cancel, and why
  add column lineage jsonb;             -- an array, one entry for each redrive: when, by whom, what it died of
-- By queue too: what is ready in a queue that is full or paused is not looked at.
drop index rota.run_ready;
create index run_ready on rota.run (part, queue, ready_at) where ready_at is not null;
create index run_expires on rota.run (expires_at) where expires_at is not null;

alter table rota.dead add column policy jsonb, add column lineage jsonb;
alter table rota.history add column lineage jsonb;

alter table rota.handler add column options jsonb not null default '{}';  -- what it declares for itself: retry, timeout, isolate
