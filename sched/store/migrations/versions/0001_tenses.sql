-- The tables by tense (docs/design.md): job is the future, run the present, history the past, dead what failed for good.

create sequence rota.number cache 1;  -- dispatch numbers and fences; only ever compared

create table rota.job (
  id uuid primary key,
  part smallint not null,                   -- last byte of id & 63
  queue text not null,
  next_run_at timestamptz not null,         -- when it is due (jitter moves it)
  scheduled_for timestamptz not null,       -- the nominal tick, the run's identity
  paused boolean not null default false,
  paused_reason text,
  handler text not null,
  tenant text,
  args jsonb not null,
  schedule jsonb,                           -- null: a one-off
  name text,
  request text,                             -- hash of the request, for jobs with a name
  created_at timestamptz not null
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 1, autovacuum_analyze_scale_factor = 0.1);
create index job_due on rota.job (part, queue, next_run_at) where not paused;
create index job_paused on rota.job (queue) where paused;
create unique index job_name on rota.job (name) where name is not null;

create table rota.run (
  job_id uuid not null,
  scheduled_for timestamptz not null,
  part smallint not null,
  state text not null constraint run_state check (state in ('waiting', 'running', 'retrying', 'buffered')),
  dispatch bigint not null,                 -- the number its one valid message carries
  scheduler bigint,                         -- the member that gave it
  fence bigint,                             -- of the attempt that may write
  owner bigint,                             -- the worker that runs it
  queue text not null,
  handler text not null,
  tenant text,
  args jsonb not null,
  attempt integer not null default 0,       -- attempts spent, the running one included
  losses smallint not null default 0,       -- workers lost since the claim or redrive
  errors jsonb,                             -- an array, one entry for each failed attempt
  due_at timestamptz not null,
  claimed_at timestamptz not null,
  begun_at timestamptz,
  retry_at timestamptz,
  ready_at timestamptz,                     -- a scheduler shall give it a new dispatch number from then on
  cancel_requested boolean not null default false,
  primary key (job_id, scheduled_for),
  constraint run_owned check ((state = 'running') = (owner is not null and fence is not null)),
  constraint run_retry check ((state = 'retrying') = (retry_at is not null))
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 1, autovacuum_analyze_scale_factor = 0.1);
-- No index on anything that begin, finish or retry change: their updates stay heap-only.
create index run_ready on rota.run (part, ready_at) where ready_at is not null;

create table rota.history (
  ended_at timestamptz not null,
  job_id uuid not null,
  scheduled_for timestamptz not null,
  outcome text not null,
  reason text,
  queue text not null,
  handler text not null,
  tenant text,
  args jsonb not null,
  attempt integer not null,
  losses smallint not null,
  fence bigint,
  owner bigint,
  errors jsonb,
  result jsonb,
  due_at timestamptz not null,
  claimed_at timestamptz,
  begun_at timestamptz
) partition by range (ended_at);
create index history_job on rota.history (job_id);

create table rota.dead (
  job_id uuid not null,
  scheduled_for timestamptz not null,
  died_at timestamptz not null,
  reason text not null,
  part smallint not null,
  queue text not null,
  handler text not null,
  tenant text,
  args jsonb not null,
  attempt integer not null,
  losses smallint not null,
  fence bigint,
  owner bigint,
  errors jsonb,
  due_at timestamptz not null,
  claimed_at timestamptz not null,
  begun_at timestamptz,
  primary key (job_id, scheduled_for)
);
create index dead_queue on rota.dead (queue, died_at);

create table rota.member (
  id bigint generated always as identity primary key,
  kind text not null,
  state text not null default 'live' constraint member_state check (state in ('live', 'left', 'dead')),
  host text not null,
  pid integer not null,
  version text not null,
  started_at timestamptz not null default clock_timestamp(),
  beat_at timestamptz not null default clock_timestamp(),
  ended_at timestamptz,
  watermark bigint not null default 0,      -- all its dispatches up to here are confirmed
  wakes_at timestamptz,                     -- asleep until then; null: awake
  stats jsonb not null default '{}'         -- counters, what it runs and holds, what is degraded
) with (fillfactor = 50);

create table rota.partition (
  part smallint primary key,
  owner bigint,
  epoch bigint not null default 0           -- how often it changed hands
) with (fillfactor = 50);
insert into rota.partition (part) select generate_series(0, 63);

create table rota.duty (                    -- work for one scheduler at a time; its row's lock is the lease
  name text primary key,
  due_at timestamptz not null default to_timestamp(0),
  ran_at timestamptz not null default to_timestamp(0),
  holder bigint
);
insert into rota.duty (name) values ('recovery'), ('retention');

create table rota.key (
  scope text not null,
  key text not null,
  job_id uuid not null,
  request text not null,                    -- hash of the request: the same key with another one is refused
  until timestamptz not null,
  primary key (scope, key)
);
create index key_until on rota.key (until);

create table rota.handler (
  name text primary key,
  app text not null,
  queue text not null,
  args_schema jsonb not null,
  seen_at timestamptz not null
);

create table rota.queue (
  name text primary key,
  paused boolean not null default false,
  cap integer not null default 20000,       -- most that is published and not yet begun
  created_at timestamptz not null default clock_timestamp()
);
