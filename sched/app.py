from rota.sched.policy import Retry
class Call: pass
class Cancel(Exception): pass
class NoRetry(Exception): pass
class RetryAfter(Exception): pass
class Snooze(Exception): pass
class Handler: pass
class App: pass
